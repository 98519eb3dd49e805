"""Losses of pretraining: their gradients, their weights, and instances on which nothing can be learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies import imitate, losses, pomo, run
from cnf_cli.problems import cvrp, tsp
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PretrainSection

TSP, CVRP = tsp.Problem(tsp.Params()), cvrp.Problem(cvrp.Params())
BOTH = pytest.mark.parametrize("problem", [TSP, CVRP], ids=["tsp", "cvrp"])
KINDS = pytest.mark.parametrize("loss", ["reinforce", "leader", "preference"])
ENGINE = TorchEngine()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(problem: BaseProblem, seed: int = 0) -> pomo.Policy:
    return pomo.Policy(pomo.Params(width=16, layers=2, heads=4, feed_forward=32), problem).init(rng(seed))


def section(**keys: Any) -> PretrainSection:
    return PretrainSection(leader_weight=3.0, preference_scale=0.7, **keys)


def plain(loss: str, cost: Tensor, log_prob: Tensor) -> Tensor:
    """The loss written out pair by pair and rollout by rollout, for autograd."""
    b, p = cost.shape
    total = torch.zeros((), dtype=log_prob.dtype)
    for i in range(b):
        mean, best = cost[i].mean(), int(cost[i].argmin())
        for j in range(p):
            if loss == "preference":
                for k in range(p):
                    if cost[i, j] < cost[i, k] * (1 - 1e-6):
                        total = total - torch.sigmoid(0.7 * (log_prob[i, j] - log_prob[i, k])).log() / p**2
            else:
                times = 3.0 if loss == "leader" and j == best else 1.0
                total = total + times * (cost[i, j] - mean) * log_prob[i, j] / p
    return total / b


@BOTH
@KINDS
def test_gradient_is_that_of_the_equation(problem: BaseProblem, loss: str) -> None:
    """Value and gradient equal autograd through the equation, rollout by rollout and pair by pair."""
    policy, inst, seeds = make(problem), problem.sample(3, rng=rng(), n=6), torch.arange(3)
    got, seen = losses.rollout_loss(section(loss=loss), policy, problem, inst, ENGINE, seeds)
    want = plain(loss, seen.cost, ENGINE.log_prob(policy.encode(inst), problem.world(inst), seen.tours))
    assert float(got.detach()) == pytest.approx(float(want.detach()), rel=1e-4)
    weights = list(policy.parameters())
    pairs = zip(torch.autograd.grad(got, weights), torch.autograd.grad(want, weights), strict=True)
    ours, theirs = (torch.cat([g.flatten() for g in side]) for side in zip(*pairs, strict=True))
    assert theirs.norm() > 0
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


def test_preference_weight_is_a_derivative() -> None:
    """The weights are finite differences of the loss by each log-probability."""
    cost, log_prob = torch.rand(2, 5, generator=rng()).double(), -torch.rand(2, 5, generator=rng(1)).double() * 9
    _, weight = losses.preference(cost, log_prob, 0.3)
    for p in range(5):
        step = torch.zeros(2, 5, dtype=torch.float64)
        step[:, p] = 1e-6
        high, low = (losses.preference(cost, log_prob + side * step, 0.3)[0] for side in (1, -1))
        assert torch.allclose(weight[:, p], (high - low) / 2e-6, atol=1e-8)


@BOTH
def test_reinforce_is_the_loss_of_the_defences(problem: BaseProblem) -> None:
    """The default loss is `reinforce_loss` bit for bit, also from chosen starts."""
    policy, inst, seeds = make(problem), problem.sample(3, rng=rng(), n=6), torch.arange(3)
    for starts in (None, torch.tensor([2, 4])):
        ours, a = losses.rollout_loss(section(), policy, problem, inst, ENGINE, seeds, starts)
        theirs, b = run.reinforce_loss(policy, problem, inst, ENGINE, seeds, starts)
        assert torch.equal(ours, theirs)
        assert torch.equal(a.tours, b.tours)
        assert starts is None or torch.equal(a.tours[:, :, problem.depots], starts.expand(3, -1))


def test_preference_ignores_rounding() -> None:
    """Costs equal but for rounding give no weight, and a shift or stretch of all costs changes nothing."""
    log_prob = torch.tensor([[-1.0, -2.0, -3.0]])
    _, nothing = losses.preference(torch.tensor([[4.0, 4.0000001, 4.0]]), log_prob, 0.05)
    assert not nothing.any()
    cost = torch.tensor([[4.0, 5.0, 4.5]])
    assert torch.equal(losses.preference(cost, log_prob, 0.05)[1], losses.preference(3 * cost + 7, log_prob, 0.05)[1])


@BOTH
@KINDS
@pytest.mark.parametrize("n", [2, 3])
def test_nothing_to_learn_stays_finite(problem: BaseProblem, loss: str, n: int) -> None:
    """Two or three nodes, all at one point: every rollout costs the same, and loss and gradients are finite."""
    policy, inst = make(problem), problem.sample(2, rng=rng(), n=n)
    assert inst.xy is not None
    for few in (inst, inst.with_(xy=torch.full_like(inst.xy, 0.5))):
        value, _ = losses.rollout_loss(section(loss=loss), policy, problem, few, ENGINE, torch.arange(2))
        grads = torch.autograd.grad(value, list(policy.parameters()), allow_unused=True)
        assert bool(torch.isfinite(value))
        assert all(g is None or bool(torch.isfinite(g).all()) for g in grads)
    assert float(value.detach()) == 0


def test_closed_tours_are_the_same_tour() -> None:
    """A label read from any start, either way, has the label's edges; without `reverse` in the label's direction."""
    labels = torch.stack([torch.randperm(7, generator=rng(i)) for i in range(4)])
    starts = torch.tensor([0, 3, 6])
    for reverse in (False, True):
        tours, good = imitate.closed_tours(labels, starts, rng(), reverse=reverse)
        assert bool(good.all())
        assert torch.equal(tours[..., 0], starts.expand(4, -1))
        forward = 0
        for i in range(4):
            legs = set(zip(labels[i].tolist(), labels[i].roll(-1).tolist(), strict=True))
            back = {(b, a) for a, b in legs}
            for tour in tours[i]:
                found = set(zip(tour.tolist(), tour.roll(-1).tolist(), strict=True))
                assert found in ((legs, back) if reverse else (legs,))
                forward += found == legs
        assert forward == 12 if not reverse else 0 < forward < 12


def test_depot_tours_keep_the_routes() -> None:
    """Every walk is feasible and begins at its start; the good ones have the routes' cost, the others cost more."""
    inst = CVRP.sample(3, rng=rng(), n=12)
    tours, _ = run.rollout(make(CVRP), CVRP, inst, ENGINE)
    labels = [_routes(tours[i, 0].tolist()) for i in range(3)]
    starts = CVRP.world(inst).starts
    walks, good = imitate.depot_tours(labels, starts, rng())
    wanted = CVRP.cost(inst, tours)[:, 0]
    ends = [{route[k] for route in labels[i] for k in (0, -1)} for i in range(3)]
    for i in range(3):
        for p, start in enumerate(starts.tolist()):
            cost = CVRP.check(inst, i, walks[i, p])
            assert int(walks[i, p, 1]) == start
            assert bool(good[i, p]) == (start in ends[i])
            assert cost == pytest.approx(float(wanted[i]), rel=1e-5) if good[i, p] else cost > float(wanted[i])


def _routes(walk: list[int]) -> list[list[int]]:
    text = " ".join(map(str, walk)).split(" 0")
    return [[int(v) for v in part.split() if v != "0"] for part in text if part.strip() not in ("", "0")]


@BOTH
def test_likelihood_is_the_mean_of_the_good_tours(problem: BaseProblem) -> None:
    """Value and gradient are those of minus the mean log-probability over good tours, and training raises it."""
    policy, inst = make(problem), problem.sample(3, rng=rng(), n=6)
    tours, cost = run.rollout(policy, problem, inst, ENGINE, seeds=torch.arange(3))
    good = torch.rand(cost.shape, generator=rng()) < 0.5
    good[:, 0] = True
    got, seen = losses.likelihood_loss(policy, problem, inst, ENGINE, tours, good)
    log_prob = ENGINE.log_prob(policy.encode(inst), problem.world(inst), tours)
    want = -torch.stack([log_prob[i][good[i]].mean() for i in range(3)]).mean()
    weights = list(policy.parameters())
    pairs = zip(torch.autograd.grad(got, weights), torch.autograd.grad(want, weights), strict=True)
    ours, theirs = (torch.cat([g.flatten() for g in side]) for side in zip(*pairs, strict=True))
    assert float(got.detach()) == pytest.approx(float(want.detach()), rel=1e-4)
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
    assert torch.equal(seen.best, torch.stack([cost[i][good[i]].min() for i in range(3)]))


def test_labels_are_learned() -> None:
    """Steps along the likelihood raise the probability of optimal tours."""
    policy = make(TSP)
    inst = Instances(torch.rand(4, 5, 2, generator=rng()))
    labels = torch.stack([torch.randperm(5, generator=rng(i)) for i in range(4)])
    tours, good = imitate.closed_tours(labels, torch.arange(5), rng(), reverse=False)
    optimizer, seen = torch.optim.Adam(policy.parameters(), lr=1e-2), []
    for _ in range(20):
        loss, _ = losses.likelihood_loss(policy, TSP, inst, ENGINE, tours, good)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen.append(float(loss.detach()))
    assert seen[-1] < 0.5 * seen[0]
