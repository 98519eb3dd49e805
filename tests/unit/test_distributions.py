"""Generated maps against their definitions: drawn here a second time from other random numbers, and compared.

Each comparison is a two-sample Kolmogorov-Smirnov test of one number per map. Its threshold is that of a false alarm
in one of 100,000 (`ALARM`); seeds are fixed, so that a test that passes once passes always.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cnf_cli.plugins import load
from cnf_cli.problems import sampling

Array = NDArray[np.float64]
MAPS, NODES, ALARM = 2000, 50, 1e-5


def fitted(xy: Array) -> Array:
    """Both minima 0, and the longer side 1."""
    xy = xy - xy.min(0)
    return xy / xy.max()


def rotation(rng: np.random.Generator) -> Array:
    """A share of the nodes, itself uniform in 0..1, turned about the origin by one uniform angle."""
    xy, share, angle = rng.random((NODES, 2)), rng.random(), rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    chosen = rng.random(NODES) < share
    xy[chosen] = xy[chosen] @ turn.T
    return fitted(xy)


def explosion(rng: np.random.Generator) -> Array:
    """Nodes nearer than 0.3 to a centre go to its other side, at 0.3 and an exponential way with mean 0.1 beyond."""
    xy, centre = rng.random((NODES, 2)), rng.random(2)
    for node in xy:
        away = centre - node
        far = np.hypot(*away)
        if far < 0.3:
            node[:] = centre + (0.3 + rng.exponential(0.1)) * away / far
    return fitted(xy)


def gaussian_mixture(rng: np.random.Generator) -> Array:
    """3 to 6 clusters of deviation 1, centres uniform in a square of side 1, 10, 20, ... or 100; stretched per axis."""
    side = rng.choice([1, *range(10, 101, 10)])
    centres = rng.random((rng.integers(3, 7), 2)) * side
    xy = centres[rng.integers(len(centres), size=NODES)] + rng.standard_normal((NODES, 2))
    return (xy - xy.min(0)) / (xy.max(0) - xy.min(0))


def uniform(rng: np.random.Generator) -> Array:
    """Every coordinate uniform."""
    return rng.random((NODES, 2))


DEFINITIONS: dict[str, Callable[[np.random.Generator], Array]] = {
    "uniform": uniform,
    "rotation": rotation,
    "explosion": explosion,
    "gaussian_mixture": gaussian_mixture,
}


def numbers(xy: Tensor) -> dict[str, Tensor]:
    """What is compared: for each map its spread, shape, emptiness, and into how many groups it falls."""
    far = torch.cdist(xy, xy, compute_mode="donot_use_mm_for_euclid_dist")
    alone = far + 9 * torch.eye(xy.shape[1])
    groups = (far < 0.1).float()
    for _ in range(6):  # reach in 64 steps
        groups = ((groups @ groups) > 0).float()
    first = groups.argmax(-1)
    return {
        "nearest neighbour": alone.amin(-1).mean(-1),
        "farthest nearest neighbour": alone.amin(-1).amax(-1),
        "mean distance": far.mean((1, 2)),
        "spread of distances": far.std((1, 2)),
        "shorter side": xy.amax(1).amin(-1),
        "mean x": xy[..., 0].mean(-1),
        "mean y": xy[..., 1].mean(-1),
        "groups": (first == torch.arange(xy.shape[1])).sum(-1).double(),
    }


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two empirical distribution functions."""
    at = torch.cat([a, b]).sort().values
    below = [torch.searchsorted(x.sort().values, at, right=True) / len(x) for x in (a, b)]
    return float((below[0] - below[1]).abs().max())


@pytest.mark.parametrize("name", DEFINITIONS)
def test_maps_follow_their_definition(name: str) -> None:
    """No number's distribution differs from that of maps drawn by the definition, at one false alarm in 100,000."""
    assert set(DEFINITIONS) == set(sampling.DISTRIBUTIONS)
    ours = sampling.coordinates(name, MAPS, NODES, torch.Generator().manual_seed(3)).double()
    rng = np.random.default_rng(4)
    theirs = torch.from_numpy(np.stack([DEFINITIONS[name](rng) for _ in range(MAPS)]))
    limit = math.sqrt(-math.log(ALARM / 2) / MAPS)
    differ = {what: gap(a, numbers(theirs)[what]) for what, a in numbers(ours).items()}
    assert {what: value for what, value in differ.items() if value > limit} == {}


def test_demands_follow_their_definition() -> None:
    """Demands are whole units from 1 to 9, equally often: chi-square with 8 degrees of freedom, p = 0.00001."""
    module = load("problems", "cvrp")
    inst = module.Problem(module.Params(n=NODES)).sample(500, rng=torch.Generator().manual_seed(5))
    units = (inst.demand[:, 1:] * inst.capacity[:, None]).round().long().flatten()
    counts = torch.bincount(units, minlength=10)
    assert (int(counts[0]), len(counts)) == (0, 10)
    expected = len(units) / 9
    assert float(((counts[1:] - expected) ** 2 / expected).sum()) < 37.3


def test_open_costs_follow_their_definition() -> None:
    """Without closure every cost off the diagonal is uniform: Kolmogorov-Smirnov, one false alarm in 100,000."""
    module = load("problems", "atsp")
    problem = module.Problem(module.Params(n=20, closure=False))
    matrix = problem.sample(200, rng=torch.Generator().manual_seed(6)).matrix
    costs = matrix[:, ~torch.eye(20, dtype=torch.bool)].flatten().double().sort().values
    place = (torch.arange(len(costs)) + 0.5) / len(costs)
    assert float((costs - place).abs().max()) < math.sqrt(-math.log(ALARM / 2) / (2 * len(costs)))
