"""From per-instance costs to a table: rows with intervals and quantiles, paired comparisons with verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnf_cli.evaluation import statistics as stats
from cnf_cli.evaluation.verdicts import Answer, answers, verdict

Array = NDArray[np.float64]
_SAME = 1e-9
"""Relative difference up to which two costs are one: the same tour, summed from another start."""


@dataclass(frozen=True)
class Column:
    """What one method found on one set, instance by instance."""

    set: str
    method: str
    cost: Array
    """(models, b), with all augmented copies."""
    plain: Array | None
    """(models, b), without; None for solvers."""
    reference: Array
    """(b,), NaN where unknown."""
    proved: NDArray[np.bool_]
    names: tuple[str, ...]
    solver: str
    """Who made the reference."""
    paired: bool = True
    """False for a set that was made against this method."""
    claimed: bool = False
    """True where a file said what is proved; nobody here has seen the proof."""

    @property
    def best(self) -> Array:
        """Best of all models, per instance."""
        out: Array = self.cost.min(0)
        return out


def rows_of(column: Column, augment: int, decode: str) -> Iterator[dict[str, Any]]:
    """Best of all models first, then without augmentation, then model by model."""
    models = len(column.cost)
    kinds: list[tuple[Array, int]] = [(column.cost, augment if column.plain is not None else 1)]
    if column.plain is not None and augment > 1:
        kinds.append((column.plain, 1))
    for costs, copies in kinds:
        yield _row(column, costs.min(0), None, copies, decode)
    if models > 1:
        for costs, copies in kinds:
            for j in range(models):
                yield _row(column, costs[j], j, copies, decode)


def _row(column: Column, cost: Array, model: int | None, augment: int, decode: str) -> dict[str, Any]:
    known = np.isfinite(column.reference)
    proved = int(column.proved[known].sum())
    row: dict[str, Any] = {
        "set": column.set,
        "method": column.method,
        "models": len(column.cost),
        "model": model,
        "augment": augment,
        "decode": decode if column.plain is not None else None,
        "count": len(cost),
        "cost": _short(cost.mean()),
        "reference": f"{column.solver or 'unknown'}, {_proof(proved, int(known.sum()), column.claimed)}",
        "reference_cost": None,
        "reference_count": int(known.sum()),
        "proved": 0 < proved == int(known.sum()) and not column.claimed,
    }
    numbers: dict[str, Any] = dict.fromkeys(("gap_percent", "gap_ci95", "p50", "p95", "worst", "share_not_worse"))
    if known.any():
        reference = column.reference[known]
        gap = stats.gaps(cost[known], reference)
        p50, p95, worst = stats.quantiles(gap)
        row["reference_cost"] = _short(reference.mean())
        numbers |= {"gap_percent": _short(gap.mean()), "p50": _short(p50), "worst": _short(worst)}
        if len(gap) >= stats.ENOUGH:
            interval = stats.bootstrap(gap)
            numbers["gap_ci95"] = [_short(interval.low), _short(interval.high)]
            numbers["share_not_worse"] = _short((cost[known] <= reference * (1 + _SAME)).mean())
        if len(gap) >= stats.ENOUGH_FOR_P95:
            numbers["p95"] = _short(p95)
    else:
        row["reference"] = "none"
    return {**row, **numbers}


def _proof(proved: int, count: int, claimed: bool) -> str:
    """How many of the references are known to be optimal, in words."""
    if not proved:
        return "not proved optimal"
    what = "claimed optimal in the file" if claimed else "proved optimal"
    return what if proved == count else f"{proved:,} of {count:,} {what}"


def comparisons_of(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Every pair of methods on every set they share: difference, test and verdict, corrected for all of them."""
    pairs = [
        (a, b)
        for a, b in combinations(columns, 2)
        if a.set == b.set and a.paired and b.paired and a.method != b.method and a.best.shape == b.best.shape
    ]
    differences = [_differences(a, b) for a, b in pairs]
    out = []
    for (a, b), (d, of), answer in zip(pairs, differences, answers([d for d, _ in differences]), strict=True):
        told: dict[str, Any] = {"set": a.set, "a": a.method, "b": b.method, "count": len(d), "of": of}
        told |= {"difference_percent": _short(d.mean()), "ci95": None, "t": None, "p": None, "p_holm": None}
        if answer is not None:
            told |= {"ci95": [_short(answer.low), _short(answer.high)]}
            told |= {"p": _short(answer.p), "p_holm": _short(answer.p_holm)}
            # An infinite t (a constant difference) has no place in JSON; its p says the same.
            told |= {"t": _short(answer.t) if np.isfinite(answer.t) else None}
        line = verdict((a.method, b.method), d, answer, {"gap": " points of gap", "cost": "% of the cost"}[of])
        line += _by_mean_cost(a.best.mean() - b.best.mean(), answer)
        out.append({**told, "verdict": f"{a.set}: {line}"})
    return out


def _differences(a: Column, b: Column) -> tuple[Array, str]:
    """(a's gap minus b's on each instance, in points, "gap"); where too few references are known, ("cost") their
    costs' difference in percent of the mean of both."""
    known = np.isfinite(a.reference)
    if known.all() or known.sum() >= stats.ENOUGH:
        d = stats.gaps(a.best[known], a.reference[known]) - stats.gaps(b.best[known], b.reference[known])
        of = "gap"
    else:
        middle = (a.best + b.best) / 2
        d, of = 100 * np.divide(a.best - b.best, middle, out=np.zeros_like(middle), where=middle > 0), "cost"
    return np.where(np.abs(d) <= 100 * _SAME, 0.0, d), of


def _by_mean_cost(difference: float, answer: Answer | None) -> str:
    """What to add where the mean of costs points the other way than a clear verdict."""
    if answer is None or not answer.clear or difference * answer.mean >= 0:
        return ""
    return "; its mean cost is " + ("lower" if difference < 0 else "higher") + ", as large instances weigh more there"


def _short(value: float) -> float:
    """Ten digits: enough for any use, and free of the last bit's noise."""
    return float(f"{float(value):.10g}")
