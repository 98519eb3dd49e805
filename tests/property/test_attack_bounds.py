"""Whatever the gradient, an attack's step ends in a valid instance, and a bounded one inside its budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cnf_cli import plugins
from cnf_cli.attacks.attribute import Attack, BudgetSection, Params
from cnf_cli.attacks.base import measure
from cnf_cli.attacks.moves import MOST_DEMAND, Bounded, Free, strongest, units_of
from cnf_cli.attacks.noise import Attack as Noise
from cnf_cli.attacks.noise import BudgetSection as NoiseBudget
from cnf_cli.attacks.noise import Params as NoiseParams
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.problems.instances import Instances

SCALES = st.sampled_from([0.0, 1e-30, 1e-6, 1e-2, 1.0, 1e4, 1e20, 3e38])
SEEDS = st.integers(0, 10**6)
CLOUDS = st.sampled_from(["uniform", "equal", "line", "corner", "pairs"])


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem_of(kind: str) -> Any:
    module = plugins.load("problems", kind)
    return module.Problem(module.Params(n=6))


def make(kind: str, cloud: str, seed: int, n: int = 6) -> tuple[Any, Instances]:
    """A problem and three instances, possibly degenerate, some with demands that fill the vehicle."""
    problem = problem_of(kind)
    inst = problem.sample(3, rng=rng(seed), n=n)
    xy = inst.xy.clone()
    if cloud == "equal":
        xy[:] = xy[:, :1]
    elif cloud == "line":
        xy[..., 0] = 0.5
    elif cloud == "corner":
        xy = xy.round()
    elif cloud == "pairs":
        xy[:, 1::2] = xy[:, 0 : 2 * (xy.shape[1] // 2) : 2]
    inst = inst.with_(xy=xy)
    if inst.demand is not None and cloud == "equal":
        inst = inst.with_(demand=torch.where(inst.demand > 0, 1.0, 0.0), capacity=torch.full((3,), 5.0))
    return problem, inst


def random_gradient(inst: Instances, scale: float, seed: int) -> dict[str, torch.Tensor]:
    found = {"xy": torch.randn(inst.xy.shape, generator=rng(seed)) * scale}
    if inst.demand is not None:
        found["demand"] = torch.randn(inst.demand.shape, generator=rng(seed + 1)) * scale
    return {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in found.items()}


def assert_valid(inst: Instances) -> None:
    assert inst.xy is not None
    assert inst.xy.isfinite().all()
    assert ((inst.xy >= 0) & (inst.xy <= 1)).all()
    if inst.demand is not None:
        assert inst.capacity is not None
        units = inst.demand * inst.capacity[:, None]
        assert (units[:, 0] == 0).all()
        assert ((units[:, 1:] - units[:, 1:].round()).abs() < 1e-4).all()
        assert (units[:, 1:].round() >= 1).all()
        assert (units <= inst.capacity[:, None] * (1 + 1e-6)).all()


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@given(
    cloud=CLOUDS,
    scale=SCALES,
    seed=SEEDS,
    mode=st.sampled_from(["released", "paper"]),
    how=st.sampled_from(["minmax", "if_needed", "clip"]),
)
@settings(max_examples=40, deadline=None)
def test_a_free_step_ends_in_a_valid_instance(
    kind: str, cloud: str, scale: float, seed: int, mode: Any, how: Any
) -> None:
    """Any finite gradient, any cloud of nodes: coordinates on the map, demands whole units within 1..capacity."""
    problem, inst = make(kind, cloud, seed)
    free = Free(problem, problem.movable, how, mode)
    alpha = torch.tensor([0.0, 1.0, 100.0])
    out, _ = free(inst, random_gradient(inst, scale, seed), alpha)
    assert_valid(out)
    assert torch.equal(out.xy[0], inst.xy[0])


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@given(
    cloud=CLOUDS,
    scale=SCALES,
    seed=SEEDS,
    steps=st.integers(1, 4),
    radius=st.sampled_from([0.0, 1e-4, 0.01, 0.05, 0.5, 2.0]),
    units=st.integers(0, 9),
    nodes=st.integers(0, 8),
)
@settings(max_examples=40, deadline=None)
def test_a_bounded_attack_stays_in_its_budget(
    kind: str, cloud: str, scale: float, seed: int, steps: int, radius: float, units: int, nodes: int
) -> None:
    """After any number of steps: moves within the radius, demands within the units, no more nodes changed than k."""
    problem, inst = make(kind, cloud, seed)
    budget = BudgetSection(radius=radius, demand=units, nodes=nodes)
    step, now = Bounded(problem, inst, problem.movable, budget, steps), inst
    for t in range(steps):
        now, _ = step(now, random_gradient(inst, scale, seed + t))
        assert_budget(inst, now, radius, units, nodes)
        assert_valid(now)


def assert_budget(clean: Instances, out: Instances, radius: float, units: int, nodes: int) -> None:
    assert out.xy is not None
    assert clean.xy is not None
    moved = (out.xy.double() - clean.xy.double()).norm(dim=-1)
    assert moved.max() <= (radius or 2**0.5)
    changed = moved > 0
    if clean.demand is not None:
        change = (units_of(out) - units_of(clean)).abs()
        top = units_of(clean).amax(-1, keepdim=True).clamp(min=MOST_DEMAND)
        assert (change <= (units or top - 1) + 1e-3).all()
        assert (units_of(out) <= top + 1e-3).all()
        changed |= change > 0
    assert changed.sum(-1).max() <= (nodes or clean.nodes)


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@given(
    cloud=CLOUDS,
    seed=SEEDS,
    radius=st.sampled_from([1e-4, 0.05, 0.5]),
    nodes=st.integers(0, 8),
    units=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_noise_stays_in_its_budget(kind: str, cloud: str, seed: int, radius: float, nodes: int, units: int) -> None:
    """Random moves obey the same bounds; without a demand budget no demand changes."""
    problem, inst = make(kind, cloud, seed)
    units = units if kind == "cvrp" else 0
    params = NoiseParams(budget=NoiseBudget(radius=radius, nodes=nodes, demand=units))
    out = Noise(params, problem, TorchEngine())([], inst, rng=rng(seed)).instances
    assert_budget(inst, out, radius, units, nodes)
    assert_valid(out)
    if kind == "cvrp":
        assert torch.equal(out.xy[:, 0], inst.xy[:, 0])
        assert units or torch.equal(out.demand, inst.demand)


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@given(cloud=CLOUDS, seed=SEEDS, n=st.integers(2, 6), steps=st.integers(1, 3), bounded=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_whole_attack_is_valid(kind: str, cloud: str, seed: int, n: int, steps: int, bounded: bool) -> None:
    """Through a real policy, from two nodes up, with every attribute attacked: valid, finite, flags 0 or 1."""
    problem, inst = make(kind, cloud, seed, n)
    policies = plugins.load("policies", "pomo")
    policy = policies.Policy(policies.Params(width=8, layers=1, heads=2, feed_forward=8), problem)
    keys: dict[str, Any] = {"budget": BudgetSection(radius=0.05, demand=2 if kind == "cvrp" else 0)} if bounded else {}
    attack = Attack(Params(steps=steps, attributes=problem.movable, **keys), problem, TorchEngine())
    out = attack([policy], inst, rng=rng(seed))
    assert_valid(out.instances)
    assert all(v.isfinite().all() for v in out.stats.values())
    assert {float(v) for v in out.stats["zero_gradient"]} <= {0.0, 1.0}
    if bounded:
        assert_budget(inst, out.instances, 0.05, 2 if kind == "cvrp" else 0, 0)


@given(seed=SEEDS, count=st.integers(0, 9))
def test_the_strongest_nodes_are_exactly_as_many_as_allowed(seed: int, count: int) -> None:
    """k nodes are chosen and none that was not chosen ranks higher; 0 means all."""
    rank = torch.rand(3, 7, generator=rng(seed))
    chosen = strongest(rank, count)
    assert (chosen.sum(-1) == (min(count, 7) or 7)).all()
    for row, marks in zip(rank, chosen, strict=True):
        assert marks.all() or row[marks].min() >= row[~marks].max()


@given(seed=SEEDS)
def test_an_unmoved_instance_measures_zero(seed: int) -> None:
    """The distance of an instance to itself is zero in every number."""
    _, inst = make("cvrp", "uniform", seed)
    assert all((v == 0).all() for v in measure(inst, inst).values())
