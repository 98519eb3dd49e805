"""A stage as a value: its name in every key, what it runs, and what people are told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cnf_cli.recipe.sections import Section
from cnf_cli.store import Manifest, make_key

if TYPE_CHECKING:
    from cnf_cli.pipeline.job import Job, Result


def _no_command(made: Manifest, recipe: str) -> str:
    return ""


@dataclass(frozen=True)
class Stage:
    """One kind of work whose results are stored."""

    name: str
    """A part of every key and manifest: it stays what it is when the file that holds the stage is renamed."""
    version: int
    """Goes up when the same settings and inputs would give other bytes."""
    run: Callable[[Job], Result]
    title: Callable[[Task], str]
    """What a task of this stage does, in plain words, for the overview of a pipeline."""
    command: Callable[[Manifest, str], str] = _no_command
    """(an artifact, the recipe as a user names it or "") -> what makes it alone; "" where nothing shorter is known
    than what was typed then."""
    labelled: Callable[[Task], str] = lambda _: "the clean instances"
    """What the task's instances are called when a solver is asked about them."""
    distributed: bool = False
    """All ranks work together; otherwise rank 0 works and the others wait."""


@dataclass(frozen=True)
class Named:
    """An artifact as a recipe names it: looked up in the store when it is needed."""

    key: str
    """An id, a prefix or an alias."""


@dataclass(frozen=True)
class Task:
    """A stage that is wanted, with the tasks or artifacts it reads."""

    stage: Stage
    sections: Mapping[str, Section]
    inputs: Mapping[str, Task | Manifest | Named] = field(default_factory=dict)
    alias: str | None = None
    """The ref that will point at the result."""
    command: str = ""
    """What a user would type to run this stage alone."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """What the stage may use but its result must not depend on, such as where an input file lies."""

    def dumped(self) -> dict[str, Any]:
        return {name: section.identity() for name, section in self.sections.items()}

    def key(self, inputs: Mapping[str, Manifest]) -> str:
        digests = {name: manifest.digest for name, manifest in inputs.items()}
        return make_key(self.stage.name, self.stage.version, self.dumped(), digests)
