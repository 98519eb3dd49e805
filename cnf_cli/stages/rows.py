"""From per-instance costs to a table: rows with intervals and quantiles, paired comparisons with verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnf_cli import stats

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
        "reference": f"{column.solver or 'unknown'}, {_proof(proved, int(known.sum()))}",
        "reference_cost": None,
        "reference_count": int(known.sum()),
        "proved": 0 < proved == int(known.sum()),
    }
    numbers: dict[str, Any] = dict.fromkeys(("gap_percent", "gap_ci95", "p50", "p95", "worst", "share_not_worse"))
    if known.any():
        reference = column.reference[known]
        gap = stats.gaps(cost[known], reference)
        interval = stats.bootstrap(gap)
        p50, p95, worst = stats.quantiles(gap)
        row["reference_cost"] = _short(reference.mean())
        numbers = {
            "gap_percent": _short(interval.mean),
            "gap_ci95": [_short(interval.low), _short(interval.high)],
            "p50": _short(p50),
            "p95": _short(p95),
            "worst": _short(worst),
            "share_not_worse": _short((cost[known] <= reference * (1 + _SAME)).mean()),
        }
    else:
        row["reference"] = "none"
    return {**row, **numbers}


def _proof(proved: int, count: int) -> str:
    """How many of the references are known to be optimal, in words."""
    if proved in (0, count):
        return "proved optimal" if proved else "not proved optimal"
    return f"{proved:,} of {count:,} proved optimal"


def comparisons_of(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Every pair of methods on every set they share: paired test, interval, verdict; Holm over all of them."""
    pairs = [
        (a, b)
        for a, b in combinations(columns, 2)
        if a.set == b.set and a.paired and b.paired and a.method != b.method and a.best.shape == b.best.shape
    ]
    tests = [stats.paired_t_test(*_relative(a, b)) if len(a.best) > 1 else None for a, b in pairs]
    real = [test.p for test in tests if test is not None]
    corrected = iter(stats.holm(real) if real else [])
    out = []
    for (a, b), test in zip(pairs, tests, strict=True):
        x, y = _relative(a, b)
        p_holm = next(corrected) if test is not None else None
        interval = stats.bootstrap(100 * (x - y) / np.where(y > 0, y, 1.0))
        told: dict[str, Any] = {"set": a.set, "a": a.method, "b": b.method, "count": len(x)}
        told |= {"difference_percent": _short(interval.mean), "ci95": [_short(interval.low), _short(interval.high)]}
        # An infinite t (a constant difference) has no place in JSON; its p says the same.
        finite = test is not None and np.isfinite(test.t)
        told |= {"t": _short(test.t) if test is not None and finite else None}
        told |= {"p": None if test is None else _short(test.p), "p_holm": None if p_holm is None else _short(p_holm)}
        out.append({**told, "verdict": f"{a.set}: {stats.verdict(x, y, (a.method, b.method), p=p_holm)}"})
    return out


def _relative(a: Column, b: Column) -> tuple[Array, Array]:
    """Both methods' costs as multiples of the reference, so that large instances do not drown small ones."""
    scale = a.reference if np.isfinite(a.reference).all() and (a.reference > 0).all() else b.best
    scale = np.where(scale > 0, scale, 1.0)
    return a.best / scale, b.best / scale


def _short(value: float) -> float:
    """Ten digits: enough for any use, and free of the last bit's noise."""
    return float(f"{float(value):.10g}")
