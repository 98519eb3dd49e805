"""No answer beats a proof: where one does, one of the two is wrong, and nothing that is measured by them counts."""

from __future__ import annotations

import numpy as np

from cnf_cli.errors import CheckFailed
from cnf_cli.problems.distance import Array

GRID = 1e7
"""Exact solvers take whole distances: real ones are rounded to this share of the map's extent, and the proof is of
the rounded ones."""
_SAME = 1e-9
"""Relative difference up to which two costs are one: the same tour, summed from another start."""


def rounding(nodes: int, *, xy: Array | None = None, matrix: Array | None = None, rule: str = "euclid") -> float:
    """How far a proved optimum may lie above the true one, because distances were rounded for the proof.

    Nothing where distances are whole numbers, or whole millionths. Otherwise both the proved tour and a better one may
    be off by a leg's rounding for each of their legs, of which there are at most two per node with a depot.
    """
    if matrix is not None:
        away = np.asarray(matrix, np.float64)[~np.eye(nodes, dtype=bool)]
        if any(np.abs(away * unit - np.rint(away * unit)).max(initial=0.0) <= 1e-6 for unit in (1.0, 1e6)):
            return 0.0
        leg = float(away.max(initial=0.0)) / GRID
    elif rule != "euclid":
        return 0.0
    else:
        assert xy is not None
        # Half a unit for each coordinate of both ends, and half a unit for the length.
        leg = 2.0 * max(1.0, float(np.abs(xy).max(initial=0.0))) / GRID
    return 2.0 * nodes * leg


def beaten(cost: float, optimum: float, slack: float) -> bool:
    """Whether the cost lies below the proved optimum by more than rounding explains."""
    return cost < optimum - slack - _SAME * abs(optimum)


def contradiction(name: str, who: str, cost: float, prover: str, optimum: float) -> CheckFailed:
    """The error that names both: who answered, and who proved that nothing is better."""
    return CheckFailed(
        f"{who} has a tour of {name} that costs {cost:.10g}, and {prover} says that {optimum:.10g} is proved optimal:"
        " one of the two is wrong",
        hint="the tour was judged: `cnf label ID --solver NAME` gives the data another reference; where both are cnf's"
        " own, please report it",
    )
