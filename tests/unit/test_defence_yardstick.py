"""The benchmark's yardstick computes what the package computes, so that comparing their times is fair."""

from __future__ import annotations

import torch

from benchmarks.plain_cnf import PlainCnf, PlainRouter, attack, copy_policy
from cnf_cli.defences.router import Router
from cnf_cli.engine import get_engine
from cnf_cli.policies.run import advantage
from tests.unit.defence_kit import small_attack, small_models, small_problem


def test_yardstick_network_is_the_same_function() -> None:
    """On equal weights and tours, log-probabilities, costs and the gradient of the loss agree with the package's."""
    problem, engine = small_problem("tsp", 7), get_engine("torch")
    policy = small_models(problem, 1)[0]
    plain, inst = copy_policy(policy), problem.sample(3, rng=torch.Generator().manual_seed(1))
    tours = engine.rollout(policy.encode(inst), problem.world(inst), torch.arange(3))
    _, log_p, cost = plain(inst.xy, tours)
    assert torch.allclose(cost, problem.cost(inst, tours), atol=1e-5)
    loss, expected = engine.score(policy.encode(inst), problem.world(inst), tours, advantage(cost.detach()))
    assert torch.allclose(log_p, expected, atol=1e-4)
    torch.autograd.backward(loss.mean())
    torch.autograd.backward((advantage(cost.detach()) * log_p).sum(1).mean())
    assert torch.allclose(plain.Wk.weight.grad, policy.decoder.k.weight.grad, atol=1e-5)
    assert torch.allclose(plain.layers[0].ff1.weight.grad, policy.layers[0].ff1.weight.grad, atol=1e-5)


def test_yardstick_attack_has_the_same_result(monkeypatch) -> None:
    """On equal tours the yardstick's attack and the released attribute attack give the same adversarial maps."""
    problem = small_problem("tsp", 7)
    policy = small_models(problem, 1)[0]
    plain, inst = copy_policy(policy), problem.sample(3, rng=torch.Generator().manual_seed(1))
    ours = small_attack(problem)
    seen = []
    roll = ours._roll
    monkeypatch.setattr(ours, "_roll", lambda *a: seen.append(roll(*a)) or seen[-1])
    expected = ours([policy], inst, rng=torch.Generator().manual_seed(2), step=torch.full((3,), 5.0)).instances.xy
    got = attack(lambda x: plain(x, seen[0].tours), inst.xy, 5.0)
    assert torch.allclose(got, expected, atol=1e-4)


def test_yardstick_step_trains_all_models_and_its_router() -> None:
    """One plain step changes every model, gives each at least K rows, and has the published router."""
    problem = small_problem("tsp", 6)
    plain = PlainCnf([copy_policy(m) for m in small_models(problem)])
    before = [m.Wk.weight.detach().clone() for m in plain.models]
    torch.manual_seed(0)
    metrics = plain.step(torch.rand(4, 6, 2), 3.0, 4)
    assert all(not torch.equal(a, m.Wk.weight) for a, m in zip(before, plain.models, strict=True))
    assert min(metrics["loads"]) >= 4
    example = small_problem("tsp", 6).sample(1, rng=torch.Generator())
    size = [sum(p.numel() for p in r.parameters()) for r in (PlainRouter(3), Router(example, 3))]
    assert size[0] == size[1] == 50_432
