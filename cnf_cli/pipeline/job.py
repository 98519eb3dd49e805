"""What a stage is given to work with, and how it reports progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cnf_cli import interrupt
from cnf_cli.recipe.sections import RuntimeSection, Section
from cnf_cli.store import Manifest, Store


class Bar(Protocol):
    """One progress bar."""

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        """Move on by `amount`, and show the latest values of `shown`."""


class Bars(Protocol):
    """Where progress goes: a live terminal, log lines, or nowhere."""

    def bar(self, what: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Bar]: ...

    def say(self, text: str) -> None:
        """One line for the reader."""


class Silent:
    """Progress that nobody watches."""

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        pass

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        yield self

    def say(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Artifact:
    """A finished stage's outputs, ready to read."""

    store: Store
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where the output is; its bytes are compared with its hash, so that damage is not built upon."""
        return self.store.checked(self.manifest.key, name)

    def names(self, suffix: str = "") -> list[str]:
        return sorted(name for name in self.manifest.outputs if name.endswith(suffix))


@dataclass(frozen=True)
class Job:
    """One run of one stage."""

    sections: Mapping[str, Section]
    inputs: Mapping[str, Artifact]
    work: Path
    """An own folder that survives interruptions; outputs are written here too."""
    runtime: RuntimeSection = field(default_factory=RuntimeSection)
    bars: Bars = field(default_factory=Silent)
    provenance: dict[str, Any] = field(default_factory=dict)
    """What the stage wants to add to its manifest's provenance."""

    local: Mapping[str, Any] = field(default_factory=dict)
    """What the task passed along outside its key."""

    def section(self, name: str) -> Any:
        """The section of that name, of its plugin's own type."""
        return self.sections[name]

    def pause_point(self) -> None:
        """Call where the state is saved: stops here if a stop was asked for."""
        asked = interrupt.stop_asked()
        if asked is not None:
            raise interrupt.Interrupted(asked, saved=True)

    def stopping(self) -> bool:
        """True once a stop was asked for: save the state, then call `pause_point`."""
        return interrupt.stop_asked() is not None


@dataclass(frozen=True)
class Result:
    """What a stage leaves behind."""

    files: Mapping[str, Path]
    checks: Mapping[str, Any] = field(default_factory=dict)


def derived_seed(*parts: object) -> int:
    """A seed that depends on every part and on nothing else, e.g. (recipe's seed, stage, step)."""
    text = json.dumps([str(p) for p in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
