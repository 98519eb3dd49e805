"""What a vehicle carries: one tolerance, and exact sums of whole units. Needs no torch: solvers start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

TOLERANCE = 1e-6
"""By what share of the capacity a load may exceed it where demands are no whole units: the only slack there is.

The judge allows all of it. Whoever makes tours takes half: shares of a capacity in float32 are wrong by up to 6e-8.
"""


def is_whole(demand: NDArray[Any], capacity: float | int | NDArray[Any]) -> NDArray[Any]:
    """Whether all loads of an instance, (..., n) against (...), are whole units, whose sums are exact."""
    return np.asarray(np.all(demand == np.rint(demand), axis=-1) & (capacity == np.rint(capacity)))


def judged_limit(demand: NDArray[Any], capacity: float | int | NDArray[Any]) -> NDArray[Any]:
    """The largest load the judge lets pass."""
    return np.where(is_whole(demand, capacity), capacity, capacity * (1 + TOLERANCE))


def limit(demand: NDArray[Any], capacity: float | int | NDArray[Any]) -> NDArray[Any]:
    """The largest load of a tour that is made here; summed in any order, the judge lets it pass."""
    return np.where(is_whole(demand, capacity), capacity, capacity * (1 + TOLERANCE / 2))


FLOAT32_UNITS = 1 << 22
"""Up to this capacity float32 shares tell whole units apart; above it they are kept in float64."""


class Loads(NamedTuple):
    """What nodes add to a load and what a vehicle carries, in float64: exact where an instance has whole units."""

    demand: Float[Tensor, "b n"]
    limit: Float[Tensor, " b"]


def loads(share: Float[Tensor, "b n"], capacity: Float[Tensor, " b"] | None = None) -> Loads:
    """Whole units against the capacity where the shares are such, as far as their numbers tell; else the shares."""
    exact = share.detach().double()
    limits = exact.new_full((len(exact),), 1 + TOLERANCE / 2)
    if capacity is None:
        return Loads(exact, limits)
    units, whole = whole_units(share, capacity)
    carried = capacity.detach().double()
    whole = whole.all(1) & (carried == carried.round())
    return Loads(exact.where(~whole[:, None], units), limits.where(~whole, carried))


def whole_units(share: Float[Tensor, "b n"], capacity: Float[Tensor, " b"]) -> tuple[Tensor, Tensor]:
    """(float64 units, rounded where they are whole up to the rounding of the shares; where that is so)."""
    from torch import finfo

    units = share.detach().double() * capacity.detach().double()[:, None]
    near = units.round()
    whole = (units - near).abs() <= finfo(share.dtype).eps * near.abs()
    return near.where(whole, units), whole
