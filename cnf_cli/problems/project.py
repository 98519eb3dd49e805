"""Back into the domain: what an attack has moved becomes a valid instance again."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

How = Literal["minmax", "if_needed", "clip", "none"]
DemandRule = Literal["released", "paper"]


def project(
    xy: Float[Tensor, "b n 2"], how: How = "minmax", moved: Bool[Tensor, "b n"] | None = None
) -> Float[Tensor, "b n 2"]:
    """The moved nodes lie in the unit square; the others are untouched.

    minmax: the moved nodes of each instance are stretched per axis to exactly [0, 1]; if_needed: only those of
    instances that left the square; clip: clamped; none: left where they are. An axis without extent is clamped.
    """
    if how == "none":
        return xy
    clipped = xy.clamp(0, 1)
    mask = torch.ones_like(xy, dtype=torch.bool) if moved is None else moved[..., None].expand_as(xy)
    if how == "clip":
        return torch.where(mask, clipped, xy)
    stretched = torch.where(mask, _minmax(xy, mask, clipped), xy)
    if how == "minmax":
        return stretched
    outside = (mask & (xy != clipped)).flatten(1).any(1)
    return torch.where(outside[:, None, None], stretched, xy)


def project_demand(
    demand: Float[Tensor, "b n"],
    capacity: Float[Tensor, " b"],
    moved: Bool[Tensor, "b n"],
    rule: DemandRule = "released",
    largest: Float[Tensor, " b"] | int = 9,
) -> Float[Tensor, "b n"]:
    """Moved demands are whole units again, none above `largest` or the capacity, as shares of the capacity.

    They are first stretched to u in [0, 1] per instance. released: ceil(largest u), at least 1, as in the published
    code; paper: ceil((largest - 1) u), which is 0 at the smallest. Demands that are all equal stay as they are.
    """
    most = (torch.zeros_like(capacity) + largest)[:, None]
    limit = torch.minimum(capacity[:, None].floor(), most)
    share = (demand * capacity[:, None] / most).clamp(0, 1)
    # The float32 noise of a whole number of units must not lift it to the next.
    u = _minmax(demand, moved, share - 1e-6)
    if rule == "released":
        units = torch.minimum(torch.ceil(most * u).clamp(min=1), most)
    else:
        flat = _extent(demand, moved) == 0
        units = torch.minimum(torch.ceil(torch.where(flat, most * u, (most - 1) * u)).clamp(min=0), most)
    return torch.where(moved, torch.minimum(units, limit) / capacity[:, None], demand)


def _minmax(x: Tensor, mask: Bool[Tensor, "..."], flat: Tensor) -> Tensor:
    """x stretched over dim 1 so that its masked values reach from 0 to 1; `flat` where they are all equal."""
    low = torch.where(mask, x, torch.inf).amin(1, keepdim=True)
    extent = _extent(x, mask)
    return torch.where(extent > 0, (x - low) / torch.where(extent > 0, extent, 1.0), flat)


def _extent(x: Tensor, mask: Bool[Tensor, "..."]) -> Tensor:
    low = torch.where(mask, x, torch.inf).amin(1, keepdim=True)
    high = torch.where(mask, x, -torch.inf).amax(1, keepdim=True)
    return high - low
