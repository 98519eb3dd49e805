"""The baseline defences: AT, HAC, DivTrain, TRS and CNF_Greedy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences import hac
from cnf_cli.defences.base import Clock, draw_seeds, hardness
from cnf_cli.defences.cnf_greedy import relative_gap
from cnf_cli.defences.inputs import cosines
from cnf_cli.defences.pool import make_pool
from cnf_cli.policies.losses import rollout_loss
from cnf_cli.policies.run import reinforce_loss
from cnf_cli.recipe.sections import PretrainSection
from tests.unit.defence_kit import Run, same, small_models, small_problem

B, M = 4, 3


@pytest.fixture(params=["tsp", "cvrp"])
def problem(request: pytest.FixtureRequest) -> Any:
    return small_problem(request.param)


@pytest.mark.parametrize("loss", ["reinforce", "leader", "preference"])
def test_at_descends_the_loss_on_own_adversarial_instances(problem, loss: str) -> None:
    """One AT step equals, model by model: attack it, then one step on the loss of the result, nothing clean."""
    run, rng = Run("at", problem, loss=loss), torch.Generator().manual_seed(7)
    other = Run("at", problem)
    for one in (run, other):
        one.plain_descent()
    run.step()
    attack = other.defence.attack
    step = attack.draw(B, rng)
    hard = [attack([m], other.clean, rng=rng, step=step).instances for m in other.models]
    seeds = draw_seeds(rng, M, B)
    for model, optimizer, inst, seed in zip(other.models, other.optimizers, hard, seeds, strict=True):
        value, _ = rollout_loss(PretrainSection(loss=loss), model, problem, inst, other.defence.engine, seed)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
    assert same(run.weights(), other.weights(), 1e-6)


def test_equal_models_diverge_by_sampling_alone(problem) -> None:
    """Copies of one policy, trained by AT, are different after a step."""
    run = Run("at", problem, models=[small_models(problem, 1)[0], small_models(problem, 1)[0]])
    assert same(list(run.models[0].parameters()), list(run.models[1].parameters()))
    run.step()
    assert not same(list(run.models[0].parameters()), list(run.models[1].parameters()))


def test_hac_temperatures() -> None:
    """Cyclic as published: 19, 18, ..., 1, 20, 19 by epoch; linear as in the paper: 20 at the start, 1 at the end."""
    cyclic = hac.Params(defence="hac")
    got = [hac.temperature(cyclic, Clock(0, epoch, 0.0)) for epoch in range(21)]
    assert got == [*range(19, 0, -1), 20, 19]
    linear = hac.Params(defence="hac", temperature="linear")
    assert [hac.temperature(linear, Clock(0, 0, p)) for p in (0.0, 0.5, 1.0)] == [20, 10.5, 1]


def test_hac_hardness_and_weights_by_hand() -> None:
    """H = (c_best / mean c) log p_best, weights = softmax(tanh(H) / t); a map of zero length counts as ratio one."""
    rolled = Rolled(torch.zeros(2, 2, 3, dtype=torch.long), torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    log_p = torch.tensor([[-0.4, -5.0], [-0.2, -0.3]], requires_grad=True)
    hard = hardness(rolled, log_p)
    assert torch.allclose(hard, torch.tensor([0.5 * -0.4, -0.2]))
    assert not hard.requires_grad
    weights = hac.weights(torch.tensor([-0.2, -1.0]), 2.0)
    a, b = math.exp(math.tanh(-0.2) / 2), math.exp(math.tanh(-1.0) / 2)
    assert torch.allclose(weights, torch.tensor([a, b]) / (a + b))


def test_hac_trains_on_the_weighted_sum(problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all weight on one instance the step is the REINFORCE step on that instance alone."""
    monkeypatch.setattr(hac, "weights", lambda hard, heat: torch.eye(len(hard))[0])
    run = Run("hac", problem)
    only = Run("hac", problem)
    for one in (run, only):
        one.plain_descent()
    kept: list[Any] = []
    monkeypatch.setattr(run.defence, "learn", _spy(run.defence.learn, kept))
    run.step()
    (model, _, inst, seeds), _ = kept[0]
    loss, _ = reinforce_loss(only.models[0], problem, inst[:1], run.defence.engine, seeds[:1])
    torch.autograd.backward(loss)
    only.optimizers[0].step()
    assert same(list(model.parameters()), list(only.models[0].parameters()), 1e-6)


def _spy(call: Any, kept: list[Any]) -> Any:
    def spy(*args: Any, **more: Any) -> Any:
        kept.append((args, more))
        return call(*args, **more)

    return spy


def test_hac_batch_mixes_clean_and_adversarial(problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several steps both clean and adversarial instances are trained on, b of the 2b each time."""
    run, kept = Run("hac", problem), []
    monkeypatch.setattr(run.defence, "learn", _spy(run.defence.learn, kept))
    for _ in range(3):
        run.step()
    clean = {tuple(xy.flatten().tolist()) for xy in run.clean.xy}
    kinds = [tuple(xy.flatten().tolist()) in clean for (_, _, inst, _), _ in kept for xy in inst.xy]
    assert all(len(args[2]) == B for args, _ in kept)
    assert 0 < sum(kinds) < len(kinds)


@pytest.mark.parametrize("kind", ["divtrain", "trs"])
def test_penalty_gradient_against_finite_differences(kind: str) -> None:
    """The second-order gradient of the penalty with respect to a weight equals the slope of the penalty itself."""
    problem = small_problem()
    run = Run(kind, problem)
    for model in run.models:
        model.double()
    batch = run.clean.with_(xy=run.clean.xy.double())
    rolled = [run.defence.roll(m, batch, s) for m, s in zip(run.models, draw_seeds(run.rng, M, B), strict=True)]

    def penalty(keep: bool) -> torch.Tensor:
        grads = [run.defence.input_gradient(m, batch, r, keep=keep)[1] for m, r in zip(run.models, rolled, strict=True)]
        return run.defence.penalty(grads).mean()

    weight = run.models[1].layers[0].ff1.weight
    (slope,) = torch.autograd.grad(penalty(True), weight)
    at = divmod(int(slope.abs().argmax()), slope.shape[1])
    values = []
    for side in (1e-5, -1e-5):
        with torch.no_grad():
            weight[at] += side
        values.append(float(penalty(False)))
        with torch.no_grad():
            weight[at] -= side
    assert float(slope[at]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


@pytest.mark.parametrize("kind", ["divtrain", "trs"])
def test_step_is_the_joint_gradient_whatever_the_chunk(kind: str) -> None:
    """Model by model and chunk by chunk gives the gradient of the whole loss on one joint graph."""
    problem = small_problem()
    runs = {chunk: Run(kind, problem, chunk=chunk) for chunk in (1, 3, 64)}
    joint = Run(kind, problem)
    for run in runs.values():
        run.optimizers = [torch.optim.SGD(m.parameters(), lr=1.0) for m in run.models]
        run.defence.penalise(
            run.models, run.optimizers, run.clean, run.defence.penalty, run.rng, run.defence.params.chunk, None
        )
    rolled = [
        joint.defence.roll(m, joint.clean, s) for m, s in zip(joint.models, draw_seeds(joint.rng, M, B), strict=True)
    ]
    parts = [
        joint.defence.input_gradient(m, joint.clean, r, keep=True) for m, r in zip(joint.models, rolled, strict=True)
    ]
    total = sum(loss.mean() for loss, _ in parts) + joint.defence.penalty([g for _, g in parts]).mean()
    torch.autograd.backward(total)
    for model in joint.models:
        torch.optim.SGD(model.parameters(), lr=1.0).step()
    for run in runs.values():
        assert same(run.weights(), joint.weights(), 1e-4)


@pytest.mark.parametrize("kind", ["divtrain", "trs"])
def test_descending_the_penalty_lowers_it(kind: str) -> None:
    """On fixed tours, a few small steps against the penalty's gradient make the penalty smaller."""
    run = Run(kind, small_problem())
    rolled = [run.defence.roll(m, run.clean, s) for m, s in zip(run.models, draw_seeds(run.rng, M, B), strict=True)]
    optimizer = torch.optim.Adam([p for m in run.models for p in m.parameters()], lr=1e-3)
    values = []
    for _ in range(6):
        grads = [
            run.defence.input_gradient(m, run.clean, r, keep=True)[1] for m, r in zip(run.models, rolled, strict=True)
        ]
        loss = run.defence.penalty(grads).mean()
        values.append(float(loss.detach()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert values[-1] < values[0]


def test_cosines_by_hand() -> None:
    """Parallel, opposite and orthogonal gradients have cosines 1, -1 and 0; a vanishing gradient has 0 with any."""
    a = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    b = torch.tensor([[2.0, 0.0], [-1.0, -1.0], [1.0, 0.0]], requires_grad=True)
    got = cosines([a, b])
    assert torch.allclose(got, torch.tensor([[1.0, -1.0, 0.0]]), atol=1e-6)
    torch.autograd.backward(got.sum())
    assert b.grad.isfinite().all()
    assert cosines([a]).shape == (0, 3)


def test_greedy_takes_the_hardest(problem) -> None:
    """Each model's K rows have the largest gaps to the row's best model; `easiest` takes the smallest."""
    cost = torch.tensor([[1.0, 2.0], [3.0, 3.0], [0.0, 0.0], [4.0, 2.0]])
    assert torch.allclose(relative_gap(cost), torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    for reading, largest in (("gap", True), ("easiest", False)):
        run = Run("cnf_greedy", problem, hardness=reading, top_k=3)
        pool = make_pool(run.defence.attack, run.models, run.clean, run.rng)
        seeds = draw_seeds(run.rng, len(pool), M)
        score = run.defence.scores(run.models, pool, seeds)
        gap = score if largest else -score
        assert bool((gap >= 0).all())
        assert torch.allclose(gap.amin(1), torch.zeros(len(pool)))


@pytest.mark.parametrize("reading", ["gap", "loss", "easiest"])
def test_greedy_gives_every_model_k(problem, reading: str) -> None:
    """Every reading of hardness trains each model on exactly K rows."""
    metrics = Run("cnf_greedy", problem, hardness=reading, top_k=3).step()
    assert [metrics[f"load_{j}"] for j in range(M)] == [3, 3, 3]
