"""The attack's gradient is the derivative it claims to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.attacks.gradient import Rolled, gradient, ratio, roll
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.problems.instances import Instances

OBJECTIVES = ("hac", "detached", "advantage", "greedy")


def small(kind: str, n: int = 6, count: int = 2) -> tuple[Any, Any, Instances]:
    """A problem, an untrained policy and instances, all in float64 so that differences can be small."""
    problems, policies = plugins.load("problems", kind), plugins.load("policies", "pomo")
    problem = problems.Problem(problems.Params(n=n))
    policy = policies.Policy(policies.Params(width=16, layers=2, heads=2, feed_forward=16), problem)
    policy.init(torch.Generator().manual_seed(1))
    inst = problem.sample(count, rng=torch.Generator().manual_seed(2))
    double = Instances(**{k: None if v is None else v.double() for k, v in vars(inst).items()})
    return problem, policy.double().eval(), double


def seeds(count: int) -> Tensor:
    return torch.arange(count) + 11


def value(problem: Any, policy: Any, inst: Instances, rolled: Rolled, objective: str) -> Tensor:
    """The objective itself with the tours held fixed; what it does not differentiate comes from `rolled`."""
    log_prob = TorchEngine().log_prob(policy.encode(inst), problem.world(inst), rolled.tours)
    cost = problem.cost(inst, rolled.tours)
    fixed = rolled.cost / rolled.cost.mean(-1, keepdim=True)
    weight = {
        "hac": cost / cost.mean(-1, keepdim=True),
        "detached": fixed,
        "advantage": fixed - 1,
        "greedy": cost / rolled.cost.mean(-1, keepdim=True),
    }[objective]
    return (weight * log_prob).mean(-1)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("kind", "fields"), [("tsp", ("xy",)), ("cvrp", ("xy", "demand"))])
@torch.no_grad()
def test_gradient_agrees_with_finite_differences(kind: str, fields: tuple[str, ...], objective: str) -> None:
    """Every component, of places (the depot's too) and of demands, is the central difference of the objective."""
    problem, policy, inst = small(kind)
    rolled = roll(policy, problem, TorchEngine(), inst, None if objective == "greedy" else seeds(2))
    found = gradient(policy, problem, TorchEngine(), inst, rolled, objective, fields)
    eps = 1e-6
    for field in fields:
        flat = found[field].flatten(1)
        for i in range(flat.shape[1]):
            ends = []
            for sign in (1, -1):
                moved = getattr(inst, field).clone()
                moved.flatten(1)[:, i] += sign * eps
                ends.append(value(problem, policy, inst.with_(**{field: moved}), rolled, objective))
            torch.testing.assert_close(flat[:, i], (ends[0] - ends[1]) / (2 * eps), rtol=1e-5, atol=1e-7)


def naive(policy: Any, inst: Instances, tours: Tensor) -> tuple[Tensor, Tensor]:
    """(log p, cost) of tours, step by step as the decoder is written in the paper: no tables, no folding, no replay."""
    net, params = policy.decoder, policy.params
    groups = policy.problem.features(inst)
    h = torch.cat([policy.embed[name](x) for name, x in groups.items()], 1)
    for layer in policy.layers:
        h = layer(h)
    b, n, d = h.shape
    p, heads = tours.shape[1], params.heads
    batch = torch.arange(b)[:, None]
    total = torch.zeros(b, p, dtype=h.dtype)
    visited = torch.zeros(b, p, n, dtype=torch.bool).scatter(2, tours[..., :1], True)
    load = torch.ones(b, p, dtype=h.dtype)
    for t in range(1, tours.shape[-1]):
        at, to = tours[..., t - 1], tours[..., t]
        allowed = ~visited
        if inst.demand is not None:
            served = visited[..., 1:].all(-1)
            allowed = allowed & ~(load[..., None] + 1e-5 < inst.demand[:, None])
            allowed[..., 0] = (at != 0) | served
        query = net.last(h[batch, at])
        query = query + (net.first(h[batch, tours[..., 0]]) if net.first is not None else 0)
        query = query + (net.load(load[..., None]) if net.load is not None else 0)
        q, k, v = (x.view(b, -1, heads, d // heads).transpose(1, 2) for x in (query, net.k(h), net.v(h)))
        scores = (q @ k.transpose(2, 3) / (d // heads) ** 0.5).masked_fill(~allowed[:, None], -torch.inf)
        glimpse = net.combine((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, p, d))
        logits = params.clip * torch.tanh(glimpse @ h.transpose(1, 2) / d**0.5)
        log_prob = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1).gather(2, to[..., None])[..., 0]
        forced = inst.demand is not None and t == 1
        total = total if forced else total + log_prob
        visited = visited.scatter(2, to[..., None], True)
        if inst.demand is not None:
            load = torch.where(to == 0, torch.ones_like(load), load - inst.demand[batch, to])
    legs = inst.xy[batch[..., None], tours] - inst.xy[batch[..., None], tours.roll(-1, -1)]
    # hypot by hand: legs of length zero (waiting at the depot) must not turn the derivative into NaN.
    squared = legs.square().sum(-1)
    return total, torch.where(squared > 0, torch.where(squared > 0, squared, 1).sqrt(), 0).sum(-1)


@pytest.mark.parametrize(("kind", "fields"), [("tsp", ("xy",)), ("cvrp", ("xy", "demand"))])
def test_gradient_agrees_with_plain_autograd(kind: str, fields: tuple[str, ...]) -> None:
    """Differentiating the published objective through a step-by-step rollout gives the same gradient."""
    problem, policy, inst = small(kind, n=7, count=3)
    rolled = roll(policy, problem, TorchEngine(), inst, seeds(3))
    found = gradient(policy, problem, TorchEngine(), inst, rolled, "hac", fields)
    leaves = [getattr(inst, field).clone().requires_grad_() for field in fields]
    log_prob, cost = naive(policy, inst.with_(**dict(zip(fields, leaves, strict=True))), rolled.tours)
    objective = ((cost / cost.mean(-1, keepdim=True)) * log_prob).mean(-1).sum()
    for field, plain in zip(fields, torch.autograd.grad(objective, leaves), strict=True):
        torch.testing.assert_close(found[field], plain, rtol=1e-7, atol=1e-9)
        assert plain.abs().max() > 1e-6


def test_encoding_once_changes_nothing() -> None:
    """Differentiating the encoding that was rolled out is the same as encoding again."""
    problem, policy, inst = small("tsp")
    once = roll(policy, problem, TorchEngine(), inst, seeds(2), ("xy",))
    again = roll(policy, problem, TorchEngine(), inst, seeds(2))
    assert once.seen is not None
    assert again.seen is None
    one, two = (gradient(policy, problem, TorchEngine(), inst, r, "hac", ("xy",))["xy"] for r in (once, again))
    assert torch.equal(one, two)


def test_the_weights_get_no_gradient() -> None:
    """An attack leaves the policy's own gradients alone."""
    problem, policy, inst = small("cvrp")
    rolled = roll(policy, problem, TorchEngine(), inst, seeds(2))
    gradient(policy, problem, TorchEngine(), inst, rolled, "hac", ("xy", "demand"))
    assert all(weight.grad is None for weight in policy.parameters())


def test_ratio_of_free_tours_is_one() -> None:
    """Where every tour costs nothing, c / mean c is 1 and has no gradient: 0/0 never appears."""
    cost = torch.zeros(2, 3, requires_grad=True)
    share = ratio(cost)
    share.sum().backward()
    assert torch.equal(share, torch.ones(2, 3))
    assert cost.grad is not None
    assert torch.equal(cost.grad, torch.zeros(2, 3))
