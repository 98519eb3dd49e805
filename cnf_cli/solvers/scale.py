"""Turn real distances and demands into the integers that most solvers want, losing as little as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cnf_cli.problems.distance import Array
from cnf_cli.problems.load import is_whole


def to_integers(distances: Array, most: float) -> tuple[NDArray[np.int64], float]:
    """Integer distances <= `most`, and the factor they were multiplied by.

    Factors 1 and 1e6 are tried first: TSPLIB's rounded rules and the field's ATSP files are whole numbers at those
    scales, and then a proof on the integers is a proof on the instance. Otherwise the factor is as large as fits.
    """
    largest = float(distances.max(initial=0.0))
    for factor in (1.0, 1e6):
        scaled = distances * factor
        if largest * factor <= most and np.abs(scaled - np.rint(scaled)).max(initial=0.0) <= 1e-6:
            return np.rint(scaled).astype(np.int64), factor
    # Whole numbers that are too large, or real numbers: rounded to the finest grid that fits.
    factor = most / largest if largest > 0 else 1.0
    return np.floor(distances * factor + 0.5).astype(np.int64), float(factor)


def rounding_slack(nodes: int, factor: float, exact: bool) -> float:
    """How far a tour of `nodes` legs can be off after rounding each leg to 1/factor."""
    return 1e-6 if exact else nodes * 0.5 / factor


FLOAT32 = float(np.finfo(np.float32).eps)
"""Demands that went through float32 shares of the capacity come back as they were when this much is forgiven."""


def whole_units(demand: Array, capacity: float, most: int) -> tuple[NDArray[np.int64], int]:
    """Integer demands and capacity: the units themselves where they are whole, else the capacity becomes `most`."""
    near = np.rint(demand)
    near = near if (np.abs(demand - near) <= FLOAT32 * near).all() else demand
    if capacity <= most and is_whole(near, capacity):
        return near.astype(np.int64), round(capacity)
    return np.rint(demand * (most / capacity)).astype(np.int64), most


def is_symmetric(distances: Array) -> bool:
    """Whether the distance from i to j is that from j to i, for all pairs."""
    return bool(np.array_equal(distances, distances.T))
