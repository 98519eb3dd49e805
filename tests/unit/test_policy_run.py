"""Using a policy: the training loss, the best of many rollouts, chunks, ensembles."""

from __future__ import annotations

import pytest
import torch

from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies import pomo, run
from cnf_cli.problems import cvrp, tsp
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances

TSP, CVRP = tsp.Problem(tsp.Params()), cvrp.Problem(cvrp.Params())
BOTH = pytest.mark.parametrize("problem", [TSP, CVRP], ids=["tsp", "cvrp"])
ENGINE = TorchEngine()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(problem: BaseProblem, seed: int = 0) -> pomo.Policy:
    return pomo.Policy(pomo.Params(width=16, layers=2, heads=4, feed_forward=32), problem).init(rng(seed))


@BOTH
def test_loss_is_reinforce_with_the_shared_baseline(problem: BaseProblem) -> None:
    """loss = mean over instances and rollouts of -(advantage) log p, advantage = mean cost - cost."""
    policy, inst, seeds = make(problem), problem.sample(3, rng=rng(), n=6), torch.arange(3)
    loss, seen = run.reinforce_loss(policy, problem, inst, ENGINE, seeds)
    again, cost = run.rollout(policy, problem, inst, ENGINE, seeds=seeds)
    assert torch.equal(again, seen.tours)
    advantage = cost.mean(1, keepdim=True) - cost
    log_prob = ENGINE.log_prob(policy.encode(inst), problem.world(inst), again)
    want = -(advantage * log_prob).mean()
    assert float(loss.detach()) == pytest.approx(float(want.detach()), rel=1e-4)
    weights = list(policy.parameters())
    pairs = zip(torch.autograd.grad(loss, weights), torch.autograd.grad(want, weights), strict=True)
    got, plain = (torch.cat([g.flatten() for g in side]) for side in zip(*pairs, strict=True))
    assert (got - plain).norm() <= 1e-5 * plain.norm()
    assert torch.equal(seen.best, cost.amin(1))


def test_loss_gradient_is_right_numerically() -> None:
    """The derivative along a random direction in weight space equals a finite difference on fixed tours."""
    policy = make(TSP).double()
    inst = Instances(torch.rand(2, 5, 2, generator=rng(), dtype=torch.float64))
    loss, seen = run.reinforce_loss(policy, TSP, inst, ENGINE, torch.arange(2))
    weights = list(policy.parameters())
    direction = [torch.randn(w.shape, generator=rng(i), dtype=torch.float64) for i, w in enumerate(weights)]
    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(loss, weights), direction, strict=True))
    weight = (seen.cost - seen.cost.mean(1, keepdim=True)) / seen.cost.shape[1]

    def at(step: float) -> float:
        with torch.no_grad():
            for w, d in zip(weights, direction, strict=True):
                w += step * d
            value = ENGINE.score(policy.encode(inst), TSP.world(inst), seen.tours, weight)[0].mean()
            for w, d in zip(weights, direction, strict=True):
                w -= step * d
        return float(value)

    assert float(slope) == pytest.approx((at(1e-6) - at(-1e-6)) / 2e-6, rel=1e-4)


@BOTH
def test_fewer_starts(problem: BaseProblem) -> None:
    """With fewer starts there are as many rollouts, and the loss uses their mean."""
    inst = problem.sample(2, rng=rng(), n=8)
    _, seen = run.reinforce_loss(make(problem), problem, inst, ENGINE, torch.arange(2), starts=3)
    assert seen.cost.shape == (2, 3)


@BOTH
@pytest.mark.parametrize("sampled", [False, True])
def test_solve_is_the_best_of_all_rollouts(problem: BaseProblem, sampled: bool) -> None:
    """The cost is the minimum over copies and starts, the tour has that cost, and plain is copy 0 alone."""
    policy, inst = make(problem), problem.sample(5, rng=rng(), n=9)
    seeds = torch.arange(5) if sampled else None
    solved = run.solve([policy], problem, inst, ENGINE, augment=4, seeds=seeds)
    own = None if seeds is None else run._copies(seeds, 0, 4)
    _, cost = run.rollout(policy, problem, problem.augment(inst, 4), ENGINE, seeds=own)
    every = cost.view(5, 4, -1).double()
    assert torch.allclose(solved.cost[0], every.amin((1, 2)), rtol=1e-5)
    assert torch.allclose(solved.cost_plain[0], every[:, 0].amin(1), rtol=1e-5)
    for i in range(5):
        walk = [v for v in solved.tour[0, i].tolist() if v >= 0]
        assert not problem.depots or walk[:: len(walk) - 1] == [0, 0] != walk[-2:]
        assert problem.check(inst, i, solved.tour[0, i]) == pytest.approx(float(solved.cost[0, i]), rel=1e-9)


@BOTH
@pytest.mark.parametrize("sampled", [False, True])
def test_chunks_change_nothing(problem: BaseProblem, sampled: bool) -> None:
    """Chunks of 1, 7 and 256 instances, and of single copies, give the same tours (promise 14)."""
    policy, inst = make(problem), problem.sample(16, rng=rng(), n=10)
    seeds = torch.arange(16) if sampled else None
    base = run.solve([policy], problem, inst, ENGINE, seeds=seeds, chunk=256)
    for chunk in (1, 7):
        other = run.solve([policy], problem, inst, ENGINE, seeds=seeds, chunk=chunk)
        assert torch.allclose(other.cost, base.cost, rtol=1e-5)
        assert torch.equal(other.tour, base.tour)


def test_memory_is_bounded_by_single_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """When even one instance's copies are too many for one pass, they are taken a few at a time."""
    policy, inst = make(TSP), TSP.sample(2, rng=rng(), n=10)
    base = run.solve([policy], TSP, inst, ENGINE)
    sizes = []
    encode = policy.encode
    monkeypatch.setattr(policy, "encode", lambda x, **more: sizes.append(len(x)) or encode(x, **more))
    monkeypatch.setitem(run._ROOM, "cpu", 350)
    small = run.solve([policy], TSP, inst, ENGINE)
    assert max(sizes) == 3
    assert torch.allclose(small.cost, base.cost)


@BOTH
def test_ensembles_keep_each_model_apart(problem: BaseProblem) -> None:
    """Row m is what model m finds alone, whatever else is in the ensemble."""
    models = [make(problem, s) for s in range(3)]
    inst = problem.sample(4, rng=rng(), n=8)
    together = run.solve(models, problem, inst, ENGINE, augment=2)
    assert together.cost.shape == (3, 4)
    for m, policy in enumerate(models):
        alone = run.solve([policy], problem, inst, ENGINE, augment=2)
        assert torch.allclose(alone.cost[0], together.cost[m])
        t = min(alone.tour.shape[-1], together.tour.shape[-1])
        assert torch.equal(alone.tour[0, :, :t], together.tour[m, :, :t])
    assert (together.cost <= together.cost_plain * (1 + 1e-6)).all()


@BOTH
@pytest.mark.parametrize("n", [2, 3])
def test_tiny_and_flat_instances_train(problem: BaseProblem, n: int) -> None:
    """Loss and gradient are finite for 2 and 3 equal nodes and for customers that fill a vehicle each."""
    inst = problem.sample(2, rng=rng(), n=n)
    inst = inst.with_(xy=torch.full_like(inst.xy, 0.5))  # type: ignore[arg-type]
    if inst.demand is not None:
        inst = inst.with_(demand=(inst.demand > 0).float())
    policy = make(problem)
    loss, seen = run.reinforce_loss(policy, problem, inst, ENGINE, torch.arange(2))
    loss.backward()
    assert torch.equal(seen.cost, torch.zeros_like(seen.cost))
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_training_learns() -> None:
    """Sixty steps on TSP8 make sampled tours at least 5% shorter on fresh instances."""
    policy, stream = make(TSP), rng(7)
    test = TSP.sample(100, rng=rng(99), n=8)
    adam = torch.optim.Adam(policy.parameters(), 3e-3)

    def score() -> float:
        return float(run.rollout(policy, TSP, test, ENGINE, seeds=torch.arange(100))[1].mean())

    before = score()
    for step in range(60):
        inst = TSP.sample(32, rng=stream, n=8)
        loss, _ = run.reinforce_loss(policy, TSP, inst, ENGINE, torch.arange(32) + 1000 * step)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert score() < 0.95 * before
