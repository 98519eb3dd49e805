"""A policy that sees distances: what its tables say, that attacks see through them, that other policies stay theirs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.engine import get_engine
from cnf_cli.engine.base import Tables
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies.distance import FLOOR, apart, nearness
from cnf_cli.policies.pomo import Params, Policy
from cnf_cli.policies.run import reinforce_loss
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.training.stored_policies import load_model, save_models

KEYS = ("pointer_bias", "glimpse_bias", "encoder_bias")
ALL: dict[str, bool] = dict.fromkeys(KEYS, True)
SMALL: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "feed_forward": 32}


def made(kind: str, n: int = 9, **keys: Any) -> tuple[BaseProblem, Policy]:
    module = plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=n))
    policy = Policy(Params(**{**SMALL, **keys}), problem).init(torch.Generator().manual_seed(1))
    with torch.no_grad():  # not all the same, as after training
        for name, weight in policy.named_parameters():
            if "near" in name or "fade" in name or "bias.weight" in name:
                weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    return problem, policy


def drawn(problem: BaseProblem, count: int = 3) -> Instances:
    return problem.sample(count, rng=torch.Generator().manual_seed(5))


def test_distances_are_in_map_widths_and_floored() -> None:
    """A map twice as large has the same distances in map widths; equal points are as near as FLOOR says, and nothing
    speaks for moving them."""
    problem, _ = made("tsp")
    inst = drawn(problem)
    assert inst.xy is not None
    double = inst.with_(xy=2 * inst.xy + 3)
    assert torch.allclose(apart(problem, inst), apart(problem, double), atol=1e-6)
    xy = inst.xy.clone()
    xy[:, 1] = xy[:, 0]
    xy.requires_grad_()
    near = nearness(apart(problem, inst.with_(xy=xy)))
    assert float(near[0, 0, 1].detach()) == pytest.approx(-math.log(FLOOR))
    assert near.isfinite().all()
    (grad,) = torch.autograd.grad(near[:, 0, 1].sum(), xy)
    assert grad.abs().max() == 0
    one_point = inst.with_(xy=torch.full_like(inst.xy, 0.25))
    assert nearness(apart(problem, one_point)).isfinite().all()


def test_a_matrix_is_its_own_distances() -> None:
    """A policy on a problem without coordinates reads the matrix, in shares of its largest cost."""
    problem, policy = made("atsp", **ALL)
    inst = drawn(problem)
    assert inst.matrix is not None
    assert torch.allclose(apart(problem, inst).amax((1, 2)), torch.ones(3))
    near = policy.encode(inst).near
    assert near is not None
    assert near[0].argsort(1).equal((-inst.matrix[0].clamp_min(FLOOR * float(inst.matrix[0].max()))).argsort(1))


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_both_engines_encode_and_learn_the_same(kind: str) -> None:
    """Tables, loss and every weight's gradient, those of the biases too, agree between the engines."""
    problem, policy = made(kind, **ALL)
    inst, seeds = drawn(problem), torch.arange(3)
    found: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    for engine in (TorchEngine(), get_engine()):
        policy.zero_grad()
        tables = {name: x.detach() for name, x in policy.encode(inst, engine=engine).tensors()}
        loss, _ = reinforce_loss(policy, problem, inst, engine, seeds)
        loss.backward()
        found.append((tables, {name: w.grad.clone() for name, w in policy.named_parameters() if w.grad is not None}))
    (first, grads), (second, other) = found
    assert {"near", "space", "fade"} <= first.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
    assert grads.keys() == other.keys() == dict(policy.named_parameters()).keys()
    for name, grad in grads.items():
        assert torch.allclose(grad, other[name], rtol=1e-3, atol=1e-5 + 1e-3 * float(grad.abs().max())), name


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_attacks_see_through_the_biases(kind: str) -> None:
    """The gradient by coordinates, taken by the engine at hand, is the finite difference of the log-probability."""
    problem, policy = made(kind, n=6, **ALL)
    inst = drawn(problem, 1)
    assert inst.xy is not None
    tours = TorchEngine().rollout(policy.encode(inst), problem.world(inst), torch.tensor([3]))
    weight = torch.ones(tours.shape[:2])

    xy = inst.xy.clone().requires_grad_()
    moved = inst.with_(xy=xy)
    value, _ = get_engine().score(policy.encode(moved, engine=get_engine()), problem.world(inst), tours, weight)
    (grad,) = torch.autograd.grad(value.sum(), xy)

    policy.double()
    exact = Instances(**{k: None if v is None else v.double() for k, v in vars(inst).items()})
    direction = torch.randn(xy.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def at(step: float) -> float:
        assert exact.xy is not None
        there = exact.with_(xy=exact.xy + step * direction)
        with torch.no_grad():
            return float(TorchEngine().log_prob(policy.encode(there), problem.world(exact), tours).sum())

    slope = (at(1e-6) - at(-1e-6)) / 2e-6
    assert float((grad.double() * direction).sum()) == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_second_derivatives_pass_through_the_biases() -> None:
    """A penalty on input gradients can be differentiated again in a policy that sees distances."""
    problem, policy = made("tsp", n=6, **ALL)
    inst = drawn(problem, 1)
    assert inst.xy is not None
    xy = inst.xy.clone().requires_grad_()
    tables = policy.encode(inst.with_(xy=xy), second_order=True)
    tours = TorchEngine().rollout(policy.encode(inst), problem.world(inst), torch.tensor([3]))
    value = TorchEngine().log_prob(tables, problem.world(inst), tours).sum()
    (grad,) = torch.autograd.grad(value, xy, create_graph=True)
    grad.square().sum().backward()
    assert policy.decoder.near is not None
    assert policy.decoder.near.weight.grad is not None
    assert policy.decoder.near.weight.grad.abs() > 0


@pytest.mark.parametrize("key", KEYS)
def test_each_bias_is_felt_and_learned(key: str) -> None:
    """Any one of the keys changes what the policy says, and its numbers get a gradient."""
    problem, plain = made("tsp")
    _, policy = made("tsp", **{key: True})
    policy.load_state_dict(plain.state_dict(), strict=False)
    inst = drawn(problem)
    tours = TorchEngine().rollout(plain.encode(inst), problem.world(inst), torch.arange(3))
    values = [TorchEngine().log_prob(p.encode(inst), problem.world(inst), tours) for p in (plain, policy)]
    assert (values[0] - values[1]).abs().max() > 0.01
    new = set(policy.state_dict()) - set(plain.state_dict())
    assert new
    values[1].sum().backward()
    grads = {name: weight.grad for name, weight in policy.named_parameters()}
    for name in new:
        grad = grads[name]
        assert grad is not None
        assert grad.abs().max() > 0


def test_a_policy_without_the_keys_is_what_it_was(tmp_path: Path) -> None:
    """Without the keys neither tables nor weights nor the saved file know of distances; with them, the file says so."""
    _, plain = made("tsp")
    tables: Tables = plain.encode(drawn(plain.problem))
    assert tables.near is None
    assert tables.space is None
    assert tables.fade is None
    assert not {"pointer_bias", "glimpse_bias", "encoder_bias"} & Params(**SMALL).identity().keys()
    problem, policy = made("tsp", **ALL)
    files = save_models(tmp_path, [policy], problem.params, policy.params)  # type: ignore[attr-defined]
    again = load_model(files["model.safetensors"]).policies[0]
    assert again.params == policy.params
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), policy.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_candidates_are_the_nearest_open_nodes(kind: str) -> None:
    """Every sampled move goes to one of the k nearest unvisited nodes, or to the depot, which is always open."""
    problem, policy = made(kind, n=12, candidates=3)
    inst = drawn(problem)
    assert inst.xy is not None
    far = torch.cdist(inst.xy, inst.xy)
    world = problem.world(inst)
    tours = get_engine().rollout(policy.encode(inst), world, torch.arange(3))
    depots, homes = problem.depots, 0
    for i, p in torch.cartesian_prod(torch.arange(3), torch.arange(tours.shape[1])).tolist():
        tour = tours[i, p].tolist()
        seen = set(tour[: depots + 1])
        for t in range(depots + 1, len(tour)):
            if depots and tour[t] == 0:
                homes += 1
                continue
            nearer = [
                j for j in range(depots, 13 - (not depots)) if far[i, tour[t - 1], j] < far[i, tour[t - 1], tour[t]]
            ]
            open_nearer = [j for j in nearer if j not in seen]
            if not depots:
                assert len(open_nearer) < 3
            seen.add(tour[t])
    assert homes > 0 or not depots


def test_candidates_beyond_the_nodes_are_all_nodes() -> None:
    """With as many candidates as there are other nodes the tables are those of the policy without the key."""
    problem, plain = made("tsp")
    for count in (8, 100):
        tables = made("tsp", candidates=count)[1].encode(drawn(problem))
        assert tables.nearest is None
        assert torch.equal(tables.pointer, plain.encode(drawn(problem)).pointer)
    assert made("tsp", candidates=7)[1].encode(drawn(problem)).nearest is not None
