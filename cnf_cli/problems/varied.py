"""Depots, demands and capacities as the instances of set X vary them (Uchoa and others, EJOR 2017)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

ROUTE = (3.0, 6.0, 25.0)
"""Customers a route serves on average: least, likeliest and most of a triangular distribution."""
LARGEST = 100
"""Units a customer may ask for."""
RANGES = ((1, 1), (1, 10), (5, 10), (1, 100), (50, 100))
"""Demands that are uniform between two numbers; two further kinds depend on the place or are mostly small."""
SMALL, LARGE = (1, 10), (50, 100)
FEW, MANY = (1, 50), (51, 100)


def depots(count: int, rng: torch.Generator) -> Float[Tensor, "b 1 2"]:
    """In the middle of the map, in its corner, or anywhere: a third each, by chance."""
    anywhere = torch.rand(count, 1, 2, generator=rng, device=rng.device)
    kind = torch.randint(3, (count, 1, 1), generator=rng, device=rng.device)
    return torch.where(kind == 0, 0.5, torch.where(kind == 1, 0.0, anywhere))


def demands(customers: Float[Tensor, "b n 2"], rng: torch.Generator) -> Float[Tensor, "b n"]:
    """Whole units, each instance's of one of the seven kinds that set X has."""
    count, n, _ = customers.shape
    kind = torch.randint(len(RANGES) + 2, (count, 1), generator=rng, device=rng.device)
    share = 0.7 + 0.25 * torch.rand(count, 1, generator=rng, device=rng.device)
    few = torch.rand(count, n, generator=rng, device=rng.device) >= share
    u = torch.rand(count, n, generator=rng, device=rng.device)

    def between(low: int, high: int) -> Tensor:
        return (low + (u * (high - low + 1)).floor()).clamp(max=high)

    west, south = (customers < 0.5).unbind(-1)
    units = torch.where(west == south, between(*FEW), between(*MANY))
    units = torch.where(kind == len(RANGES), units, torch.where(few, between(*LARGE), between(*SMALL)))
    for k, ends in enumerate(RANGES):
        units = torch.where(kind == k, between(*ends), units)
    return units


def capacities(units: Float[Tensor, "b n"], rng: torch.Generator) -> Float[Tensor, " b"]:
    """Whole units such that routes serve as many customers as `ROUTE` says; no customer asks for more."""
    low, mode, high = ROUTE
    u = torch.rand(len(units), generator=rng, device=rng.device, dtype=torch.float64)
    up = low + (u * (high - low) * (mode - low)).sqrt()
    down = high - ((1 - u) * (high - low) * (high - mode)).sqrt()
    length = torch.where(u < (mode - low) / (high - low), up, down)
    wanted = torch.ceil(length * units.double().mean(1)).to(units.dtype)
    return torch.maximum(wanted, units.amax(1))
