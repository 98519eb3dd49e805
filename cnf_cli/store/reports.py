"""What the store tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cnf_cli.store.manifest import Manifest


@dataclass(frozen=True)
class Lineage:
    """One artifact and what it was made from."""

    key: str
    manifest: Manifest | None
    children: dict[str, Lineage]


@dataclass(frozen=True)
class Usage:
    """Bytes held; blobs shared by two stages count for both in `by_stage`, once in `bytes`."""

    objects: int
    bytes: int
    by_stage: dict[str, int]
    work_bytes: int
    garbage_bytes: int


@dataclass(frozen=True)
class Problem:
    """Something wrong, where, and the keys of the artifacts it takes down."""

    what: str
    path: Path
    artifacts: list[str]


@dataclass(frozen=True)
class Report:
    """What `verify` looked at and what it found."""

    checked: int
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class Dead:
    """Something gc removes: `what` is manifest, blob, work or leftover."""

    what: str
    path: Path
    size: int


@dataclass
class Sweep:
    """What gc removed, or would remove unless `deleted`; `notes` says what it left because it could not be sure."""

    deleted: bool
    removed: list[Dead] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The space freed."""
        return sum(dead.size for dead in self.removed)
