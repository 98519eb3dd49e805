"""Where the nodes of generated instances lie: uniform, and three shifted distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

RADIUS, PUSH = 0.3, 0.1
"""Explosion: nodes within RADIUS of the centre are thrown out, on average PUSH beyond it."""
SPREADS = (1, *range(10, 101, 10))
"""Gaussian mixture: widths of the square in which the centres lie, in standard deviations."""


def coordinates(dist: str, count: int, n: int, rng: torch.Generator) -> Float[Tensor, "b n 2"]:
    """`count` maps of n nodes inside the unit square."""
    if dist not in DISTRIBUTIONS:
        raise ValueError(f"no distribution {dist!r}; known: {', '.join(DISTRIBUTIONS)}")
    return DISTRIBUTIONS[dist](count, n, rng)


def uniform(count: int, n: int, rng: torch.Generator) -> Float[Tensor, "b n 2"]:
    """Every coordinate is uniform in [0, 1)."""
    return torch.rand(count, n, 2, generator=rng, device=rng.device)


def rotation(count: int, n: int, rng: torch.Generator) -> Float[Tensor, "b n 2"]:
    """A random share of the nodes is turned about the origin by one angle, then the map is fitted to the square."""
    xy = uniform(count, n, rng)
    turned = uniform(count, n, rng)[..., 0] < uniform(count, 1, rng)[..., 0]
    angle = 2 * math.pi * uniform(count, 1, rng)[..., 0]
    cos, sin = angle.cos(), angle.sin()
    x, y = xy.unbind(-1)
    moved = torch.stack([cos * x + sin * y, cos * y - sin * x], -1)
    return fit(torch.where(turned[..., None], moved, xy))


def explosion(count: int, n: int, rng: torch.Generator) -> Float[Tensor, "b n 2"]:
    """Nodes near a random centre are thrown through it, beyond RADIUS; then the map is fitted to the square."""
    xy = uniform(count, n, rng)
    centre = uniform(count, 1, rng)
    away = centre - xy
    distance = away.norm(dim=-1, keepdim=True)
    push = -PUSH * torch.log1p(-uniform(count, n, rng)[..., :1])
    # A node exactly on the centre has no direction: it stays.
    moved = centre + (RADIUS + push) * away / distance.clamp_min(1e-12)
    return fit(torch.where((distance < RADIUS) & (distance > 0), moved, xy))


def gaussian_mixture(count: int, n: int, rng: torch.Generator) -> Float[Tensor, "b n 2"]:
    """3 to 6 round clusters of unit deviation, their centres spread by a random width; stretched per axis."""
    clusters = torch.randint(3, 7, (count, 1), generator=rng, device=rng.device)
    spread = torch.tensor(SPREADS, device=rng.device)[
        torch.randint(len(SPREADS), (count,), generator=rng, device=rng.device)
    ]
    centres = uniform(count, 6, rng) * spread[:, None, None]
    member = (uniform(count, n, rng)[..., 0] * clusters).long()
    noise = torch.randn(count, n, 2, generator=rng, device=rng.device)
    xy = centres.gather(1, member[..., None].expand(-1, -1, 2)) + noise
    low, high = xy.amin(1, keepdim=True), xy.amax(1, keepdim=True)
    return (xy - low) / (high - low).clamp_min(1e-12)


def fit(xy: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
    """The map shifted to the origin and scaled, equally on both axes, until the longer one reaches 1."""
    low = xy.amin(1, keepdim=True)
    extent = (xy.amax(1, keepdim=True) - low).amax(-1, keepdim=True)
    return (xy - low) / torch.where(extent > 0, extent, 1.0)


DISTRIBUTIONS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "uniform": uniform,
    "rotation": rotation,
    "explosion": explosion,
    "gaussian_mixture": gaussian_mixture,
}
