"""Gaps of methods on clean and adversarial sets, as the figures that compare methods need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cnf_cli.evaluation.protocol import Roll
from cnf_cli.plots._source import NothingToDraw, Sources, is_adversarial, main_rows, short_set


@dataclass(frozen=True)
class Gap:
    """A mean gap with its 95% interval, percent."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Method:
    """One method's gaps by set."""

    name: str
    gaps: dict[str, Gap]


def methods_of(found: Sources) -> list[Method]:
    """All methods of all evaluations given, each once; another policy of the same name gets its evaluation's id."""
    out: dict[str, dict[str, Gap]] = {}
    roll = Roll()
    for source in found.need("evaluate", what="what `cnf evaluate` measured"):
        names = roll.enter(source.manifest, source.table["protocol"])
        for row in main_rows(source):
            if row["gap_percent"] is not None:
                name, _ = names[row["set"], row["method"]]
                out.setdefault(name, {}).setdefault(short_set(row["set"]), _gap(row))
    if not out:
        raise NothingToDraw("no gap is known", hint="gaps need reference costs: `cnf label ID`")
    return [Method(name, gaps) for name, gaps in out.items()]


def _gap(row: dict[str, Any]) -> Gap:
    low, high = row["gap_ci95"] or (row["gap_percent"], row["gap_percent"])
    return Gap(row["gap_percent"], low, high)


def sets_of(methods: list[Method]) -> tuple[list[str], list[str]]:
    """Names of the clean and of the adversarial sets, in the order they were measured."""
    names = list(dict.fromkeys(name for method in methods for name in method.gaps))
    return [n for n in names if not is_adversarial(n)], [n for n in names if is_adversarial(n)]
