"""What holds for every defence, on every problem with coordinates: a new file in cnf_cli/defences is tested here."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.defences.base import Clock
from cnf_cli.problems.instances import Instances, concatenate
from tests.unit.defence_kit import Run, same, small_problem

KINDS = plugins.kinds("defences")
PROBLEMS = [kind for kind in plugins.kinds("problems") if kind in ("tsp", "cvrp")]


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest):
    return small_problem(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_step_trains_every_model(kind: str, problem) -> None:
    """One step changes the weights of all models, all stay finite, and the metrics are a flat dict of finite floats."""
    run = Run(kind, problem)
    before = [[p.detach().clone() for p in m.parameters()] for m in run.models]
    metrics = run.step()
    for model, old in zip(run.models, before, strict=True):
        new = list(model.parameters())
        assert all(bool(p.isfinite().all()) for p in new)
        assert any(not torch.equal(a, b) for a, b in zip(old, new, strict=True))
    assert metrics
    assert all(type(k) is str and type(v) is float and math.isfinite(v) for k, v in metrics.items())


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_weights(kind: str, problem) -> None:
    """Two runs from the same seeds end with the same weights, and the global random state plays no part."""
    one, two = Run(kind, problem), Run(kind, problem)
    torch.manual_seed(1)
    one.step()
    torch.manual_seed(2)
    two.step()
    assert same(one.weights(), two.weights())


@pytest.mark.parametrize("kind", KINDS)
def test_rng_carries_on(kind: str, problem) -> None:
    """A run that saves weights, optimizers and the generator after a step, and goes on elsewhere, loses nothing."""
    one = Run(kind, problem)
    one.step()
    two = Run(kind, problem)
    for a, b in zip(one.models, two.models, strict=True):
        b.load_state_dict(a.state_dict())
    for a, b in zip(one.optimizers, two.optimizers, strict=True):
        b.load_state_dict(copy.deepcopy(a.state_dict()))
    for name, module in one.defence.modules().items():
        two.defence.modules()[name].load_state_dict(module.state_dict())
    for name, optimizer in one.defence.optimizers().items():
        two.defence.optimizers()[name].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    two.rng.set_state(one.rng.get_state())
    one.step(clock=Clock(1, 0, 0.5))
    two.step(clock=Clock(1, 0, 0.5))
    assert same(one.weights(), two.weights())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_reduced_before_each_optimizer_step(kind: str, problem) -> None:
    """Every module's gradients pass through `reduce` once, in order: zeroing them there leaves SGD without effect."""
    run = Run(kind, problem)
    run.optimizers = [torch.optim.SGD(m.parameters(), lr=1.0) for m in run.models]
    before = [[p.detach().clone() for p in m.parameters()] for m in run.models]
    seen: list[torch.nn.Module] = []

    def reduce(module: torch.nn.Module) -> None:
        seen.append(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    run.step(reduce=reduce)
    expected = [*run.models, *run.defence.modules().values()]
    assert len(seen) == len(expected)
    assert all(a is b for a, b in zip(seen, expected, strict=True))
    assert all(same(old, list(m.parameters())) for old, m in zip(before, run.models, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_instances_stay_finite(kind: str, problem) -> None:
    """All nodes equal, duplicates, and demands equal to the capacity give finite weights and metrics."""
    run = Run(kind, problem)
    metrics = {}
    for step in range(2):
        metrics = run.step(degenerate(run.clean), clock=Clock(step, 0, 0.0))
    assert all(bool(w.isfinite().all()) for w in run.weights())
    assert all(math.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize("kind", KINDS)
def test_smaller_last_batch(kind: str, problem) -> None:
    """The last batch of an epoch may be smaller than batch_size, down to one instance."""
    run = Run(kind, problem)
    run.step(run.clean[:1])
    assert all(bool(w.isfinite().all()) for w in run.weights())


@pytest.mark.parametrize("kind", KINDS)
def test_one_model(kind: str, problem) -> None:
    """An ensemble of one is an ensemble."""
    run = Run(kind, problem, models=Run(kind, problem).models[:1])
    before = run.weights()
    run.step()
    assert all(bool(w.isfinite().all()) for w in run.weights())
    assert not same(before, run.weights())


def degenerate(clean: Instances) -> Instances:
    """All nodes equal; all equal but one; duplicates in pairs; with demands: each fills the vehicle."""
    assert clean.xy is not None
    xy = clean.xy[:3].clone()
    xy[0] = 0.5
    xy[1, :-1] = 0.25
    xy[2, 1:3] = xy[2, 0]
    odd = clean[:3].with_(xy=xy)
    if odd.demand is not None:
        full = torch.ones_like(odd.demand)
        full[:, 0] = 0
        odd = concatenate([odd, odd.with_(demand=full)])
    return odd
