"""The router network: its size, what it sees, and how it is trained."""

from __future__ import annotations

import pytest
import torch

from cnf_cli.defences.cnf import shape_reward
from cnf_cli.defences.router import Router, make_router
from cnf_cli.problems.instances import Instances
from tests.unit.defence_kit import Run, small_problem


def size(router: Router) -> int:
    return sum(p.numel() for p in router.parameters())


@pytest.mark.parametrize(("kind", "count"), [("tsp", 50_432), ("cvrp", 50_944)])
def test_published_parameter_counts(kind: str, count: int) -> None:
    """With the published sizes the router has the published number of parameters."""
    example = small_problem(kind, 20).sample(1, rng=torch.Generator())
    assert size(Router(example, 3, width=128, features="paper")) == count


def test_matrix_router_has_the_published_size() -> None:
    """Instances without coordinates: the flattened 20 x 20 matrix at width 256 gives 301,056 parameters."""
    assert size(Router(Instances(matrix=torch.rand(1, 20, 20)), 3, width=256)) == 301_056


@pytest.mark.parametrize("features", ["paper", "separate", "nonlinear"])
@pytest.mark.parametrize("kind", ["tsp", "cvrp", "matrix"])
def test_logits_are_bounded(kind: str, features: str) -> None:
    """Every instance has one logit per model, within plus and minus ten, for every kind of feature."""
    rng = torch.Generator().manual_seed(0)
    inst = Instances(matrix=torch.rand(6, 5, 5)) if kind == "matrix" else small_problem(kind).sample(6, rng=rng)
    logits = make_router(inst, 3, seed=1, width=8, features=features)(inst, 100 * torch.rand(6, 3))
    assert logits.shape == (6, 3)
    assert logits.abs().max() <= 10


def test_paper_features_are_the_centroid() -> None:
    """Two maps with the same centre look the same to the published router, and different to the nonlinear one."""
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    small = 0.5 + (square - 0.5) * 0.1
    inst, cost = Instances(torch.stack([square, small])), torch.ones(2, 2)
    paper = make_router(inst, 2, seed=3, width=16, features="paper")(inst, cost)
    seeing = make_router(inst, 2, seed=3, width=16, features="nonlinear")(inst, cost)
    assert torch.allclose(paper[0], paper[1], atol=1e-5)
    assert (seeing[0] - seeing[1]).abs().max() > 1e-3


def test_seed_decides_the_first_weights() -> None:
    """Equal seeds give equal routers, other seeds other ones, and the global random state is left alone."""
    inst = small_problem().sample(1, rng=torch.Generator())
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = (make_router(inst, 3, seed=s, width=8) for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.Wq.weight, other.Wq.weight)


def test_router_reinforces_rows_that_improved() -> None:
    """One step on a reward that is positive for one entry only raises that entry's probability."""
    inst = small_problem().sample(6, rng=torch.Generator().manual_seed(0))
    cost = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    router = make_router(inst, 2, seed=1, width=16)
    before = router(inst, cost).log_softmax(0)
    torch.autograd.backward(-before[2, 1])
    torch.optim.SGD(router.parameters(), lr=1e-2).step()
    assert router(inst, cost).log_softmax(0)[2, 1] > before[2, 1]


def test_router_learns_in_a_cnf_step_only_where_routing_asks_for_it() -> None:
    """M-TopK owns and moves a router; `best` and router = false own none."""
    problem = small_problem()
    run = Run("cnf", problem, routing="m-topk")
    before = [p.detach().clone() for p in run.defence.modules()["router"].parameters()]
    run.step()
    after = list(run.defence.modules()["router"].parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for keys in ({"routing": "best"}, {"router": False}):
        assert Run("cnf", problem, **keys).defence.modules() == {}


def test_reward_shapes() -> None:
    """raw is the gain itself, relative divides by the old cost (0 on maps of zero length), mean takes the mean away."""
    gain, old = torch.tensor([0.2, -0.1, 0.0]), torch.tensor([2.0, 1.0, 0.0])
    assert torch.equal(shape_reward(gain, old, "raw", "none"), gain)
    assert torch.allclose(shape_reward(gain, old, "relative", "none"), torch.tensor([0.1, -0.1, 0.0]))
    assert shape_reward(gain, old, "standard", "none").std() == pytest.approx(1)
    assert shape_reward(gain, old, "raw", "mean").mean() == pytest.approx(0, abs=1e-7)
    assert shape_reward(torch.zeros(3), old, "standard", "mean").isfinite().all()
