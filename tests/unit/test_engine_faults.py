"""Numbers a policy should never give: every engine answers with an error that names the cause."""

from __future__ import annotations

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.engine import native
from cnf_cli.engine.base import Engine, Tables, World
from cnf_cli.engine.native import NativeEngine
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import DataError, NoAnswer
from cnf_cli.policies.pomo import Params, Policy
from tests.unit.native_kit import random_case

ENGINES: list[Engine] = [TorchEngine(), *(NativeEngine(instruction_set=isa) for isa in native.instruction_sets())]
ALL = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}-{getattr(e, 'instruction_set', '')}")
ODD = [float("nan"), float("inf"), float("-inf")]


def calls(engine: Engine, tables: Tables, world: World) -> list[str]:
    """What greedy and sampled rollouts and the scores of given tours raise."""
    sound, _ = random_case(len(tables.key), tables.key.shape[1], depot=world.demand is not None)
    tours, weight = engine.rollout(sound, world), torch.ones(len(tables.key), len(world.starts))
    seeds = torch.arange(len(tables.key))
    said = []
    for call in (
        lambda: engine.rollout(tables, world),
        lambda: engine.rollout(tables, world, seeds),
        lambda: engine.sample(tables, world, seeds),
        lambda: engine.score(tables, world, tours, weight),
    ):
        with pytest.raises(NoAnswer, match="no finite numbers") as caught:
            call()
        said.append(f"{caught.value.at} {caught.value.hint}")
    return said


@ALL
@pytest.mark.parametrize("depot", [False, True], ids=["tsp", "cvrp"])
def test_scores_that_are_no_numbers_end_in_an_error(engine: Engine, depot: bool) -> None:
    """NaN and infinities in any table of one node of one instance: an error that names the table, no tour."""
    for name in ("last", "key", "value", "pointer", "bias"):
        for odd in ODD if name == "bias" else ODD[:1]:
            tables, world = random_case(3, 9, depot=depot)
            broken = getattr(tables, name).clone()
            broken[1, 4] = odd
            for said in calls(engine, tables.with_(**{name: broken}), world):
                assert name in said
                assert "weights" in said


@ALL
@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_huge_weights_end_in_an_error(engine: Engine, kind: str) -> None:
    """Weights of 1e29, finite as they are, make every score NaN: an error, where memory was once overwritten."""
    module = plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=20))
    policy = Policy(Params(width=128, heads=8, layers=1), problem).init(torch.Generator().manual_seed(0))
    for weight in policy.parameters():
        weight.data = torch.full_like(weight, 1e29)
    inst = problem.sample(2, rng=torch.Generator().manual_seed(0))
    with torch.no_grad():
        calls(engine, policy.encode(inst, engine=engine), problem.world(inst))


@ALL
@pytest.mark.parametrize("demand", [1.5, float("nan"), float("inf")])
def test_a_demand_no_vehicle_carries_ends_in_an_error(engine: Engine, demand: float) -> None:
    """A customer no empty vehicle can serve stops rollouts and scores, wherever the rollouts start."""
    tables, world = random_case(2, 6, depot=True)
    assert world.demand is not None
    wrong = world.demand.clone()
    wrong[1, 3] = demand
    for starts in (world.starts, torch.tensor([3])):
        for seeds in (None, torch.arange(2)):
            with pytest.raises(DataError, match="larger than the vehicle's capacity"):
                engine.rollout(tables, World(starts, wrong), seeds)
        tours = torch.tensor([[[0, int(s), *(j for j in range(1, 6) if j != s), 0] for s in starts]] * 2)
        with pytest.raises(DataError, match="larger than the vehicle's capacity"):
            engine.score(tables, World(starts, wrong), tours, torch.ones(2, len(starts)))


@pytest.mark.skipif(not native.available(), reason=f"the extension is not built: {native.why_not()}")
@pytest.mark.parametrize("group", [5, 2**31 - 1])
def test_a_group_may_be_as_large_as_a_number_gets(group: int) -> None:
    """A group of all instances or of far more is the same group: its size never overflows."""
    rng = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(5, 6, 16, generator=rng) for _ in range(4))
    cost = torch.rand(5, 6, 6, generator=rng)
    kernels = native._native
    net = [torch.randn(*shape, generator=rng) for shape in ((2, 2, 16), (2, 16), (2, 16), (2,))]
    out, grads = torch.empty_like(q), [torch.empty_like(q) for _ in range(3)]
    kernels.mixed(q, k, v, cost, False, net, 2, group, out, None, [], None, 1, "")
    sums = torch.zeros(1, 2 * kernels.MIXING_WEIGHTS)
    kernels.mixed(q, k, v, cost, False, net, 2, group, None, d_out, grads, sums, 1, "")
    reference = torch.empty_like(q)
    kernels.mixed(q, k, v, cost, False, net, 2, 1, reference, None, [], None, 1, "")
    assert torch.equal(out, reference)
    assert all(x.isfinite().all() for x in (*grads, sums))
