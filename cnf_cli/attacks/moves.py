"""One step of an attack: the published free step, and the step that never leaves a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cnf_cli.attacks.base import MOVED
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.load import whole_units

MOST_DEMAND = 9
"""Demands are whole units in 1..9, as the generator draws them, or up to an instance's own largest above that."""
_REACH = 1.25
"""A bounded attack can walk this many radii in all its steps together, so that it reaches the edge and turns back."""
_HUGE = 1e18
"""A step is cut here, so that min-max arithmetic on it stays finite."""
_ROUNDING = 1e-7
"""Held back from a radius, so that float32 rounding never steps over it."""


@dataclass(frozen=True)
class Free:
    """x + step * gradient, then the problem's projection; nothing ties the result to the clean instance."""

    problem: Any
    names: Sequence[str]
    how: Literal["minmax", "if_needed", "clip", "none"]
    demand_rule: Literal["released", "paper"]
    repair: Callable[[Instances], Instances] | None = None
    """What else the projected instance must become, e.g. a matrix that obeys the triangle inequality."""

    def __call__(
        self, now: Instances, gradient: Mapping[str, Tensor], step: Float[Tensor, " b"]
    ) -> tuple[Instances, Bool[Tensor, " b"]]:
        """(the next instances, which of them the projection changed); a step of 0 leaves an instance untouched."""
        raw = now
        for field, mask in self.problem.masks(now, self.names).items():
            change = _over_nodes(step, gradient[field]) * gradient[field] * _like(mask, gradient[field])
            raw = raw.with_(**{field: getattr(now, field) + change.clamp(-_HUGE, _HUGE)})
        done = self.problem.project(raw, self.names, self.how, self.demand_rule, was=now)
        done = done if self.repair is None else self.repair(done)
        if done.demand is not None and "demand" in self.names:
            # The paper's formula gives 0 to the smallest demand, which its own domain 1..9 excludes.
            least = torch.where(self.problem.masks(now, ("demand",))["demand"], 1 / now.capacity[:, None], 0)  # type: ignore[index]
            done = done.with_(demand=torch.maximum(done.demand, least))
        keep = (step == 0) | ~_finite(done)
        return choose(keep, now, done), _differ(raw, done) & ~keep


class Bounded:
    """Normalised steps inside a budget: l2 radius per node, units per demand, number of nodes that change."""

    def __init__(self, problem: Any, clean: Instances, names: Sequence[str], budget: Any, steps: int) -> None:
        self.clean, self.budget, self.masks = clean, budget, problem.masks(clean, names)
        self.radius = budget.radius or 2**0.5
        self.most_units: int | Tensor = budget.demand
        self.share = min(1.0, _REACH / steps)
        """How much of the radius one step covers."""
        self.units = units_of(clean) if "demand" in self.masks else None
        if self.units is not None and not budget.demand:
            self.most_units = largest(clean) - 1
        self.heat = torch.zeros(len(clean), clean.nodes, device=clean.device)
        """Gradient norms summed over the steps: the nodes that matter most."""

    def __call__(self, now: Instances, gradient: Mapping[str, Tensor]) -> tuple[Instances, Bool[Tensor, " b"]]:
        """(the next instances, which of them the budget or the map's edge held back)."""
        done, raw = now, now
        self.heat = self.heat + sum(self._heat(field, gradient[field]) for field in self.masks)
        chosen = strongest(self.heat, self.budget.nodes)
        if "xy" in self.masks:
            assert now.xy is not None
            assert self.clean.xy is not None
            grad = gradient["xy"]
            length = grad.norm(dim=-1, keepdim=True)
            unit = torch.where(length > 0, grad / length.clamp_min(1e-30), torch.zeros_like(grad))
            raw = now.with_(xy=now.xy + self.share * self.radius * unit)
            done = done.with_(xy=place(self.clean, raw.xy, self.masks["xy"] & chosen, self.radius))
        if self.units is not None:
            # Whole units are rounded copies of these, so that small steps add up.
            self.units = self.units + self.share * self.most_units * gradient["demand"].sign()
            self.units = near_units(self.units, self.clean, self.most_units)
            done = done.with_(demand=load(self.clean, self.units, self.masks["demand"] & chosen, self.most_units))
        bad = ~_finite(done)
        return choose(bad, now, done), _differ(raw, done) & ~bad

    def _heat(self, field: str, gradient: Tensor) -> Float[Tensor, "b n"]:
        size = gradient.norm(dim=-1) if gradient.ndim == 3 else gradient.abs()
        size = torch.where(self.masks[field], size, torch.zeros_like(size))
        return size / size.amax(-1, keepdim=True).clamp_min(1e-30)


def place(
    clean: Instances, xy: Float[Tensor, "b n 2"] | None, may: Bool[Tensor, "b n"], radius: float
) -> Float[Tensor, "b n 2"]:
    """`xy` with every node that may move within `radius` of its clean place and on the map, and the others on it.

    The map is the unit square, widened to hold the clean node where that lies outside.
    """
    assert clean.xy is not None
    assert xy is not None
    move = xy - clean.xy
    length = move.norm(dim=-1, keepdim=True)
    limit = max(radius - _ROUNDING, 0.0)
    shrink = torch.where(length > limit, limit / length.clamp_min(1e-30), torch.ones_like(length))
    # The map holds the clean place and is convex: clipping to it only brings a node closer to that place.
    inside = torch.minimum(torch.maximum(clean.xy + move * shrink, clean.xy.clamp(max=0)), clean.xy.clamp(min=1))
    return torch.where(may[..., None], inside, clean.xy)


def load(
    clean: Instances, units: Float[Tensor, "b n"], may: Bool[Tensor, "b n"], most: int | Tensor
) -> Float[Tensor, "b n"]:
    """Demands as shares of the capacity: whole units near the clean ones where they may change, else the clean ones."""
    assert clean.demand is not None
    assert clean.capacity is not None
    whole = near_units(units.round(), clean, most)
    # An unchanged demand keeps its very bits.
    changed = may & ((whole - units_of(clean)).abs() > 0.5)
    return torch.where(changed, whole / clean.capacity[:, None], clean.demand)


def units_of(clean: Instances) -> Float[Tensor, "b n"]:
    """Demands in units."""
    assert clean.demand is not None
    assert clean.capacity is not None
    return whole_units(clean.demand, clean.capacity)[0].to(clean.demand.dtype)


def largest(clean: Instances) -> Float[Tensor, "b 1"]:
    """The most units that an attack may give one customer, but for the capacity: 9, or what one has already."""
    return units_of(clean).amax(-1, keepdim=True).clamp(min=MOST_DEMAND)


def near_units(units: Float[Tensor, "b n"], clean: Instances, most: int | Tensor) -> Float[Tensor, "b n"]:
    """Units at most `most` from the clean ones and in 1..min(`largest`, capacity), or no farther outside than those."""
    assert clean.capacity is not None
    was = units_of(clean)
    top = torch.maximum(was, torch.minimum(clean.capacity.floor()[:, None], largest(clean)))
    low = torch.maximum(was - most, was.clamp(max=1))
    return torch.minimum(torch.maximum(units, low), torch.minimum(was + most, top))


def strongest(rank: Float[Tensor, "b n"], count: int) -> Bool[Tensor, "b n"]:
    """True for the `count` highest ranked nodes of each instance; all of them when count is 0."""
    if count == 0 or count >= rank.shape[1]:
        return torch.ones_like(rank, dtype=torch.bool)
    chosen = rank.topk(count, dim=-1).indices
    return torch.zeros_like(rank, dtype=torch.bool).scatter(1, chosen, True)


def choose(which: Bool[Tensor, " b"], yes: Instances, no: Instances) -> Instances:
    """`yes` where `which`, else `no`."""
    pairs = {name: (getattr(yes, name), getattr(no, name)) for name in vars(yes)}
    return Instances(
        **{name: None if a is None else torch.where(_over_nodes(which, a), a, b) for name, (a, b) in pairs.items()}
    )


def _over_nodes(per_instance: Tensor, like: Tensor) -> Tensor:
    return per_instance.reshape(-1, *[1] * (like.ndim - 1))


def _like(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (like.ndim - mask.ndim))


def _finite(inst: Instances) -> Bool[Tensor, " b"]:
    good = torch.ones(len(inst), dtype=torch.bool, device=inst.device)
    for value in vars(inst).values():
        if value is not None:
            good = good & value.reshape(len(inst), -1).isfinite().all(-1)
    return good


def _differ(a: Instances, b: Instances) -> Bool[Tensor, " b"]:
    out = torch.zeros(len(a), dtype=torch.bool, device=a.device)
    for name, value in vars(a).items():
        if value is not None:
            out = out | ((value - getattr(b, name)).abs().reshape(len(a), -1) > MOVED).any(-1)
    return out
