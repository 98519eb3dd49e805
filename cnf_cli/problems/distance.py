"""Distances in float64 by the rule an instance file names; the only place that knows TSPLIB's rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RULES = ("euclid", "euc_2d", "ceil_2d", "att", "geo", "explicit")
_EARTH_KM = 6378.388


def legs(rule: str, start: Array, end: Array) -> Array:
    """Distance of each pair of points (..., 2) by `rule`; "euclid" is the plain, unrounded distance."""
    if rule == "geo":
        return _geo(start, end)
    delta = start - end
    squared: Array = (delta * delta).sum(-1)
    if rule == "euclid":
        return np.sqrt(squared)
    if rule == "euc_2d":
        return np.floor(np.sqrt(squared) + 0.5)
    if rule == "ceil_2d":
        return np.ceil(np.sqrt(squared))
    if rule == "att":
        exact = np.sqrt(squared / 10.0)
        rounded = np.floor(exact + 0.5)
        return rounded + (rounded < exact)
    raise ValueError(f"no distance rule {rule!r} on coordinates")


def distance_matrix(rule: str, xy: Array) -> Array:
    """All pairwise distances (n, n), zero on the diagonal."""
    out = legs(rule, xy[:, None, :], xy[None, :, :])
    np.fill_diagonal(out, 0.0)
    return out


def _radians(x: Array) -> Array:
    # TSPLIB's own DDD.MM format and its value of pi; truncation, as in its FAQ, not rounding.
    degrees = np.trunc(x)
    return 3.141592 * (degrees + 5.0 * (x - degrees) / 3.0) / 180.0


def _geo(start: Array, end: Array) -> Array:
    a, b = _radians(start), _radians(end)
    q1 = np.cos(a[..., 1] - b[..., 1])
    q2 = np.cos(a[..., 0] - b[..., 0])
    q3 = np.cos(a[..., 0] + b[..., 0])
    inner = np.clip(0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3), -1.0, 1.0)
    return np.trunc(_EARTH_KM * np.arccos(inner) + 1.0)
