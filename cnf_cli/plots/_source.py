"""Artifacts as figures read them: rows of evaluations, per-instance arrays, metrics, and how they hang together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cnf_cli.errors import ArtifactError
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Block, Dataset

Array = NDArray[Any]


class NothingToDraw(ArtifactError):
    """These artifacts do not hold what the figure shows."""


class Stored(Protocol):
    """A finished stage's outputs."""

    @property
    def manifest(self) -> Any: ...

    def path(self, name: str) -> Path: ...


@dataclass(frozen=True)
class Ask:
    """What the user wants to see of it."""

    count: int = 4
    """Instances shown."""
    instances: tuple[str, ...] = ()
    """Names or row numbers of the instances to show; empty: the figure's own choice."""


@dataclass(frozen=True, eq=False)
class Source:
    """One artifact."""

    stored: Stored

    @property
    def key(self) -> str:
        return str(self.stored.manifest.key)

    @property
    def stage(self) -> str:
        return str(self.stored.manifest.stage)

    @property
    def manifest(self) -> Any:
        return self.stored.manifest

    @cached_property
    def table(self) -> dict[str, Any]:
        """An evaluation's rows.json."""
        found: dict[str, Any] = json.loads(self.stored.path("rows.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def data(self) -> Dataset:
        """The instances: of an evaluation with everything found on them."""
        return dataset.load(self.stored.path("evaluation.h5" if self.stage == "evaluate" else "data.h5"))

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A training run's lines, each with the machine-dependent numbers of the same moment."""
        lines = self.stored.path("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        beside = {entry["instances"]: entry for entry in self.manifest.provenance.get("curve", ())}
        found = [json.loads(line) for line in lines if line.strip()]
        return [{**beside.get(one["instances"], {}), **one} for one in found]


@dataclass(frozen=True)
class Sources:
    """All artifacts a figure may read, in the order they were given."""

    all: tuple[Source, ...]
    by_key: dict[str, Source] = field(default_factory=dict)

    def of(self, *stages: str) -> list[Source]:
        """Those made by one of these stages."""
        return [one for one in self.all if one.stage in stages]

    def need(self, *stages: str, what: str) -> list[Source]:
        """As `of`, but never empty."""
        found = self.of(*stages)
        if not found:
            raise NothingToDraw(f"no {' or '.join(stages)} artifact is given", hint=f"this figure shows {what}")
        return found

    def input_of(self, source: Source, name: str) -> Source | None:
        """The artifact that `source` read under that name, if it is here."""
        entry = source.manifest.inputs.get(name)
        return None if entry is None else self.by_key.get(entry.key)


def sources(stored: Sequence[Stored]) -> Sources:
    """The artifacts, ready to look things up in."""
    found = tuple(Source(one) for one in stored)
    return Sources(found, {one.key: one for one in found})


def percent(value: float) -> str:
    """A gap as people read it: three digits that matter, and no minus before a zero."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.95 else 2
    return f"{round(value, digits) + 0.0:.{digits}f}%"


# ---- evaluations


@dataclass(frozen=True)
class Measured:
    """One set of an evaluation: its blocks, and which of the methods were measured on it."""

    name: str
    index: int
    only: int
    solver: str
    blocks: tuple[Block, ...]
    methods: tuple[str, ...]

    def method_ids(self) -> list[int]:
        """Positions of the methods measured on this set."""
        return [k for k in range(len(self.methods)) if f"cost_{k}" in self.blocks[0].extra]

    def costs(self, k: int) -> Array:
        """(b, models) of method k, all blocks joined."""
        return np.concatenate([block.extra[f"cost_{k}"] for block in self.blocks])

    def gaps(self, k: int) -> Array:
        """(b, models), percent; NaN where the reference is unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 100.0 * (self.costs(k) / self.reference[:, None] - 1.0)

    def best_gaps(self, k: int) -> Array:
        """(b,), percent, best of all models."""
        out: Array = self.gaps(k).min(1)
        return out

    @property
    def reference(self) -> Array:
        """(b,), NaN where unknown."""
        return np.concatenate([np.full(len(b), np.nan) if b.cost is None else b.cost for b in self.blocks])

    @property
    def nodes(self) -> Array:
        """(b,), nodes of each instance, the depot included."""
        return np.concatenate([np.full(len(b), b.nodes) for b in self.blocks])

    def instances(self) -> list[tuple[Block, int]]:
        """Every instance as (its block, its row)."""
        return [(block, i) for block in self.blocks for i in range(len(block))]


def measured(source: Source) -> list[Measured]:
    """The sets of one evaluation."""
    protocol = source.table["protocol"]
    methods = (*protocol["policies"], *protocol["solvers"])
    out = []
    for s, entry in enumerate(protocol["sets"]):
        blocks = tuple(block for block in source.data.blocks if int(block.extra["set"][0]) == s)
        out.append(Measured(entry["name"], s, entry["only"], entry.get("solver") or "reference", blocks, methods))
    return out


def main_rows(source: Source) -> list[dict[str, Any]]:
    """One row per set and method: the ensemble with all its augmentation."""
    table = source.table
    augment = table["protocol"]["augment"]
    return [r for r in table["rows"] if r["model"] is None and r["augment"] == (augment if r["decode"] else 1)]


def is_adversarial(name: str) -> bool:
    """Whether a set of that name was made by an attack."""
    return "adversarial" in name or name.startswith("attack")


def short_set(name: str) -> str:
    """A set's name without its explanation."""
    if "white box" in name:
        return "adversarial (white box)"
    if "black box" in name:
        return "fixed adversarial"
    return name


def choose(found: Measured, ask: Ask) -> list[int]:
    """Row numbers to show: those asked for, else those on which the first method does worst."""
    names = [block.names[i] for block, i in found.instances()]
    if ask.instances:
        return [_row(text, names) for text in ask.instances]
    ids = found.method_ids()
    if not ids:
        return list(range(min(ask.count, len(names))))
    gap = np.nan_to_num(found.best_gaps(ids[0]), nan=-math.inf)
    return [int(i) for i in np.argsort(-gap, kind="stable")[: ask.count]]


def _row(text: str, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text)
    if text.isdigit() and int(text) < len(names):
        return int(text)
    raise NothingToDraw(f"there is no instance '{text}'", hint=f"give a name or a number from 0 to {len(names) - 1}")


def instance_name(block: Block, i: int, row: int) -> str:
    """What an instance is called: its own name, else its number in the set."""
    return block.names[i] or f"instance {row}"


def tour_of(padded: Array) -> list[int]:
    """A tour without its padding."""
    return [int(v) for v in padded if v >= 0]


def runs(found: Sources) -> Iterator[tuple[Source, list[dict[str, Any]]]]:
    """Every training run with its lines."""
    for one in found.of("pretrain", "train_cnf"):
        if one.metrics:
            yield one, one.metrics


def run_name(source: Source) -> str:
    """What a training run is called."""
    sections = source.manifest.sections
    about = sections.get("problem", {})
    size = f"{str(about.get('kind', '')).upper()}{about.get('n', '')}"
    if source.stage == "train_cnf":
        return f"{method_name(source)} on {size}"
    return f"pretraining on {size}"


def method_name(source: Source) -> str:
    """What a policy artifact is called in figures, as evaluations call it."""
    if source.stage == "train_cnf":
        return f"{source.manifest.sections['train']['defence']}({source.manifest.checks.get('models', '?')})"
    return "pretrained(1)"
