"""Costs, symmetries and projections hold for arbitrary maps, not only for sampled ones."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cnf_cli.problems import cvrp, tsp
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.project import project, project_demand

TSP = tsp.Problem(tsp.Params())
CVRP = cvrp.Problem(cvrp.Params())
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 7), st.just(2))


def maps(low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, SIZES, elements=st.floats(low, high, width=32))


@settings(max_examples=60, deadline=None)
@given(maps(-1e6, 1e6), st.sampled_from(["minmax", "if_needed", "clip"]), st.data())
def test_projection_lands_in_the_square(xy: np.ndarray, how: str, data: st.DataObject) -> None:
    """Moved nodes land in [0, 1], the others stay, nothing becomes NaN, and a second projection changes nothing."""
    moved = torch.from_numpy(data.draw(arrays(np.bool_, xy.shape[:2])))
    before = torch.from_numpy(xy)
    after = project(before, how, moved)  # type: ignore[arg-type]
    assert torch.isfinite(after).all()
    assert torch.equal(after[~moved], before[~moved])
    assert bool(((after[moved] >= 0) & (after[moved] <= 1)).all())
    again = project(after, how, moved)  # type: ignore[arg-type]
    assert torch.allclose(again, after, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(2, 7)), elements=st.floats(-50, 50, width=32)),
    st.integers(1, 60),
    st.sampled_from(["released", "paper"]),
)
def test_demand_projection_is_always_valid(values: np.ndarray, capacity: int, rule: str) -> None:
    """Projected demands are whole units between 0 (released: 1) and 9 or the capacity."""
    demand = torch.from_numpy(values)
    demand[:, 0] = 0
    customers = (torch.arange(demand.shape[1]) > 0).expand_as(demand)
    limit = torch.full((len(demand),), float(capacity))
    units = project_demand(demand, limit, customers, rule)[:, 1:] * capacity  # type: ignore[arg-type]
    assert torch.allclose(units, units.round(), atol=1e-4)
    assert units.min() >= (0.999 if rule == "released" else 0)
    assert units.max() <= min(9, capacity) + 1e-4


@settings(max_examples=60, deadline=None)
@given(maps(0, 1), st.integers(0, 2**31), st.integers(1, 8))
def test_symmetries_keep_the_cost_and_the_square(xy: np.ndarray, seed: int, k: int) -> None:
    """Every augmented copy lies in the square and gives every tour its cost; the validator agrees."""
    inst = Instances(torch.from_numpy(xy))
    tour = torch.randperm(inst.nodes, generator=torch.Generator().manual_seed(seed)).expand(len(inst), 1, -1)
    copies = TSP.augment(inst, k)
    assert copies.xy is not None
    assert bool(((copies.xy >= 0) & (copies.xy <= 1)).all())
    cost = TSP.cost(inst, tour)
    assert torch.allclose(TSP.cost(copies, tour.repeat_interleave(k, 0)), cost.repeat_interleave(k, 0), atol=1e-5)
    assert abs(TSP.check(inst, 0, tour[0, 0]) - float(cost[0, 0])) <= 1e-5


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**31))
def test_cvrp_rollouts_are_feasible_for_any_demands(n: int, capacity: int, seed: int) -> None:
    """A walk that always goes to a random allowed node ends, and the validator accepts it."""
    from cnf_cli.engine.base import Tables
    from cnf_cli.engine.torch import TorchEngine

    rng = torch.Generator().manual_seed(seed)
    inst = cvrp.Problem(cvrp.Params(capacity=capacity)).sample(2, rng=rng, n=n)
    flat = torch.zeros(2, n + 1, 2)
    tables = Tables(flat, flat, flat, flat, torch.randn(2, n + 1, generator=rng), 1, 10.0, None, torch.zeros(2))
    tours = TorchEngine().rollout(tables, CVRP.world(inst), torch.tensor([seed, seed + 1]))
    for i in range(2):
        for p in range(n):
            CVRP.check(inst, i, tours[i, p])
