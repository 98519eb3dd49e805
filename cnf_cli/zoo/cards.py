"""Cards: what each policy of the zoo is, how it was trained, what was measured on it; and its weights, checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cnf_cli.errors import ArtifactError
from cnf_cli.recipe.sections import Section
from cnf_cli.zoo.place import NAME, PREFIX, folder, names

MAX_BYTES = 30_000_000
"""Of all weights together: the package stays small enough to install anywhere."""
_MAX_CARD = 1_000_000
_MAX_FILE = 200_000_000

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class WeightFile(Section):
    """One model's safetensors file, beside the card."""

    file: str = Field(pattern=rf"^{NAME}\.safetensors$")
    sha256: Digest
    bytes: int = Field(ge=1, le=_MAX_FILE)


class Weights(Section):
    """The models, in order."""

    dtype: Literal["float32", "float16"]
    digest: Digest
    """sha256 over the files' digests: one number for the whole entry."""
    files: tuple[WeightFile, ...] = Field(min_length=1, max_length=64)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)


class Training(Section):
    """One training run, as its artifact's manifest has it; machine paths are left out."""

    stage: str
    artifact: Digest
    recipe: str
    command: str
    sections: dict[str, dict[str, Any]]
    seed: int
    instances: int
    seconds: float
    """Of training, on the wall clock, over all interruptions."""
    core_hours: float
    core_hours_are: Literal["measured", "at most"]
    """Measured process time, or cores of the machine times seconds."""
    machine: dict[str, Any]
    engine: str | None = None
    git: str | None = None
    python: str
    versions: dict[str, str]
    finished: str
    curve: tuple[dict[str, Any], ...] = ()
    """What the run wrote down about itself now and then: instances, seconds, validation."""

    @property
    def _how(self) -> dict[str, Any]:
        return self.sections.get(self.stage.replace("train_cnf", "train"), {})

    @property
    def copies(self) -> int:
        """Of each instance on which it was watched."""
        return int(self._how.get("validation_augment", 1))

    @property
    def seen(self) -> str:
        """How many instances, and of which distributions where there were several."""
        mix = self._how.get("mix", ())
        return f"{self.instances:,} instances" + (f" (equal shares of {', '.join(mix)})" if mix else "")

    def progress(self) -> list[tuple[int, float, float]]:
        """(instances, core-minutes, gap in percent) of each validation; of an ensemble's, on clean instances."""
        rate = 3600 * self.core_hours / max(self.seconds, 1e-9)  # where only the clock was recorded
        found = []
        for line in self.curve:
            gap = line.get("gap_percent", line.get("clean_gap_percent"))
            if gap is not None:
                spent = line.get("cpu_seconds", rate * line.get("seconds", 0.0))
                found.append((int(line["instances"]), spent / 60, float(gap)))
        return found


class Fixed(Section):
    """Instances anyone can draw again, and what these weights cost on them: proof that a file still is what it was."""

    n: int
    seed: int
    augment: int
    costs: tuple[float, ...]


class Gap(Section):
    """One measured row."""

    set: str
    instances: int
    augment: int
    cost: float
    gap_percent: float
    gap_ci95: tuple[float, float] | None
    """None of too few instances."""
    reference: str
    names: tuple[str, ...] = ()
    """Of public instances."""
    nodes: int | None = None
    """Of uniform instances larger than what the policy was made for."""
    command: str
    """What to type, in the source tree, to measure it again."""

    @property
    def interval(self) -> str:
        """The interval as tables have it; a dash where there are too few instances for one."""
        from cnf_cli.evaluation.statistics import ENOUGH

        if self.gap_ci95 is None or self.instances < ENOUGH:
            return "-"
        return "{:.3f} to {:.3f}".format(*self.gap_ci95)


class Card(Section):
    """One policy or ensemble of the zoo."""

    format: Literal[1] = 1
    name: str = Field(pattern=rf"^{NAME}$")
    about: str
    problem: dict[str, Any]
    policy: dict[str, Any]
    weights: Weights
    training: tuple[Training, ...] = Field(min_length=1)
    """The run that made these weights first, then the run whose weights it started from, and so on."""
    fixed: Fixed
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def alias(self) -> str:
        return PREFIX + self.name

    @property
    def kind(self) -> str:
        return str(self.problem["kind"])

    @property
    def n(self) -> int:
        return int(self.problem["n"])

    @property
    def models(self) -> int:
        return len(self.weights.files)

    @property
    def largest(self) -> int | None:
        """The most nodes the network can read; None where there is no bound."""
        return largest_of(self.policy, self.n)

    def progress(self) -> list[tuple[int, float, float]]:
        """(instances, core-minutes, gap in percent) of each validation, from the first of the runs for this problem."""

        def watched(run: Training) -> tuple[Any, ...]:
            return run.stage, run.copies, run.sections["problem"]

        alike = takewhile(lambda run: watched(run) == watched(self.training[0]), self.training)
        found, seen, spent = [], 0, 0.0
        for run in reversed(list(alike)):
            found += [(seen + instances, spent + minutes, gap) for instances, minutes, gap in run.progress()]
            seen, spent = seen + run.instances, spent + 60 * run.core_hours
        return found

    def gap(self, set_: str, augment: int | None = None) -> Gap | None:
        """The row of that set, at the most copies or at `augment`."""
        rows = [g for g in self.gaps if g.set.startswith(set_) and augment in (None, g.augment)]
        return max(rows, key=lambda g: g.augment) if rows else None


def largest_of(policy: Mapping[str, Any], n: int) -> int | None:
    """The most nodes that a policy made for n nodes can read; None where there is no bound."""
    return int(policy.get("one_hot_seeds") or n) if policy.get("kind") == "matnet" else None


def card(name: str) -> Card:
    """The card of that name, with or without the prefix; a wrong name lists what is near."""
    import difflib

    short = name.removeprefix(PREFIX)
    known = names()
    if short not in known:
        near = difflib.get_close_matches(short, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}? " if near else ""
        raise ArtifactError(f"the zoo has no {PREFIX}{short[:60]}", hint=hint + "`cnf zoo ls` lists what is there")
    return _read(folder() / f"{short}.json", short)


def cards() -> list[Card]:
    """All of them."""
    return [card(name) for name in names()]


@cache
def _read_cached(path: Path, stamp: tuple[int, int]) -> Card:
    # `strict` sections take tuples for lists only from JSON, so the text itself is what is validated.
    return Card.model_validate_json(path.read_bytes())


def _read(path: Path, name: str) -> Card:
    hint = "install the package again, or check CNF_ZOO"
    try:
        stat = path.stat()
        if stat.st_size > _MAX_CARD:
            raise ArtifactError("the card is too large to be one", at=str(path), hint=hint)
        found = _read_cached(path, (stat.st_mtime_ns, stat.st_size))
    except (OSError, ValidationError, ValueError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ArtifactError(f"the card of {PREFIX}{name} is damaged: {what}", at=str(path), hint=hint) from None
    if found.name != name:
        raise ArtifactError(f"the card of {PREFIX}{name} is about {found.name!r}", at=str(path), hint=hint)
    return found


def weight_files(one: Card) -> list[Path]:
    """The files of an entry, after every byte of them was checked against the card."""
    out = []
    for entry in one.weights.files:
        path = folder() / entry.file
        try:
            if path.stat().st_size != entry.bytes:
                raise ArtifactError(f"the weights of {one.alias} have another size than their card says", at=str(path))
            found = file_digest(path)
        except OSError as error:
            raise ArtifactError(
                f"cannot read the weights of {one.alias}: {error.strerror}", at=str(path), hint=_REINSTALL
            ) from None
        except ArtifactError as error:
            raise ArtifactError(error.message, at=error.at, hint=_REINSTALL) from None
        if found != entry.sha256:
            raise ArtifactError(
                f"the weights of {one.alias} are not what their card says: sha256 {found[:12]}..., not"
                f" {entry.sha256[:12]}...",
                at=str(path),
                hint=_REINSTALL,
            )
        out.append(path)
    if joined(tuple(entry.sha256 for entry in one.weights.files)) != one.weights.digest:
        raise ArtifactError(f"the card of {one.alias} contradicts itself: its digest is another", hint=_REINSTALL)
    return out


_REINSTALL = "the installation is damaged: install the package again"


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def joined(digests: Sequence[str]) -> str:
    """One digest for several files in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def fitting(problem: str, n: int, *, ensemble: bool = False) -> str | None:
    """The entry for that problem trained nearest to n (by ratio) that can read n nodes; None where there is none."""
    fit = [
        one
        for one in cards()
        if one.kind == problem and (one.models > 1) is ensemble and (one.largest is None or n <= one.largest)
    ]
    nearest = min(fit, key=lambda one: (abs(math.log(one.n / max(1, n))), one.n), default=None)
    return nearest.name if nearest else None
