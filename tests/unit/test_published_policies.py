"""POMO and MatNet compute what the published code computes, tour by tour and gradient by gradient (golden files)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Adam

from cnf_cli.plugins import load
from cnf_cli.policies.losses import tour_losses
from cnf_cli.policies.run import solve
from cnf_cli.problems.atsp import close, seeded
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PretrainSection
from tests.unit.published_kit import (
    EXACT,
    SIDES,
    Golden,
    Side,
    check_sum,
    far,
    golden,
    instances,
    policy_of,
    precision,
    problem_of,
    relative,
    slices,
    tensor_of,
)

KINDS = ["tsp", "cvrp", "atsp"]
FILES = {"tsp": "pomo_tsp", "cvrp": "pomo_cvrp", "atsp": "matnet_atsp"}


@pytest.fixture(params=[(kind, size) for kind in KINDS for size in ("small", "paper")], ids="-".join)
def case(request: pytest.FixtureRequest, shared: Path) -> tuple[str, str, Golden]:
    kind, size = request.param
    return kind, size, golden(shared, FILES[kind])


def maps(case: tuple[str, str, Golden], side: Side, part: str = "") -> Instances:
    """The instances of one part of the file; ATSP has the same four everywhere."""
    kind, size, file = case
    if kind == "atsp":
        return Instances(matrix=file.tensor("matrix", side.dtype), seed=file.tensor("instance_seed"))
    return instances(file.below(size), side, f"{part}/" if part else "")


def test_the_golden_weights_are_the_recipes(case: Any) -> None:
    """The weights drawn here are those that the numbers were computed with."""
    kind, size, file = case
    assert check_sum(policy_of(kind, size, EXACT)) == pytest.approx(
        file.below(size)["weights_check"].tolist(), abs=1e-7
    )


@pytest.mark.parametrize("side", SIDES)
def test_sampled_tours_are_the_published_ones(case: Any, side: Side) -> None:
    """From the same draws: every tour, its cost, and the log-probability of its moves."""
    kind, size, file = case
    problem, policy, given = problem_of(kind), policy_of(kind, size, side), file.below(size).below("sampled")
    inst = maps(case, side)
    with precision(side) as engine, torch.no_grad():
        tables, world = policy.encode(inst, engine=engine), problem.world(inst)
        tours = engine.rollout(tables, world, given.tensor("seeds"))
        assert torch.equal(tours.long(), given.tensor("tours")[..., : tours.shape[-1]])
        assert not given.tensor("tours")[..., tours.shape[-1] :].any()  # padding at the depot
        _, log_prob = engine.score(tables, world, tours, torch.ones(tours.shape[:2], dtype=side.dtype))
        assert far(problem.cost(inst, tours), given.tensor("cost")) <= side.pick(1e-12, 4e-6)
    exact, single = (5e-10, 4e-3) if kind == "atsp" else (1e-11, 8e-4)
    assert far(log_prob, given.tensor("log_prob")) <= side.pick(exact, single)


@pytest.mark.parametrize("side", SIDES)
def test_greedy_tours_are_the_published_ones(case: Any, side: Side) -> None:
    """Every greedy tour and its cost; over symmetric copies the lowest costs too."""
    kind, size, file = case
    problem, policy, given = problem_of(kind), policy_of(kind, size, side), file.below(size)
    inst = maps(case, side)
    with precision(side) as engine, torch.no_grad():
        tours = engine.rollout(policy.encode(inst, engine=engine), problem.world(inst))
        assert torch.equal(tours.long(), given.tensor("greedy/tours")[..., : tours.shape[-1]])
        assert far(problem.cost(inst, tours), given.tensor("greedy/cost")) <= side.pick(1e-12, 4e-6)
        if kind != "atsp":
            found = solve([policy], problem, inst, engine, augment=8)
            for got, name in ((found.cost, "score_x8"), (found.cost_plain, "score_x1")):
                assert far(got[0], given.tensor(f"greedy_x8/{name}")) <= side.pick(1e-12, 4e-6)


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_copies_are_the_published_ones_in_their_order(shared: Path, kind: str) -> None:
    """The eight symmetric copies of an instance, the first of them itself."""
    file = golden(shared, FILES[kind])
    first = instances(file.below("small"), EXACT)[[0]]
    copies = problem_of(kind).augment(first, 8)
    assert far(copies.xy, file.tensor("augmented_copies_of_instance_0")) <= 1e-15


@pytest.mark.parametrize("side", SIDES)
def test_a_training_step_is_the_published_one(case: Any, side: Side) -> None:
    """REINFORCE on given tours: loss per instance, gradients, and in float64 the weights after a step of Adam."""
    kind, size, file = case
    problem, policy, given = problem_of(kind), policy_of(kind, size, side), file.below(size).below("train")
    inst, tours = maps(case, side, "train"), given.tensor("tours")
    loss = _descend(problem, policy, inst, tours, side)
    assert far(loss, given.tensor("loss_per_instance")) <= side.pick(1e-11, 2e-4 * float(loss.abs().max()))
    total = sum(float(p.grad.double().square().sum()) for p in policy.parameters() if p.grad is not None)
    assert total == pytest.approx(float(given["grad_norm_squared"]), rel=side.pick(1e-10, 2e-3))
    close_to = side.pick(3e-8, 7e-3 if kind == "atsp" else 8e-4)
    for prefix in ("grad_first_8_rows/", "grad_first_rows/"):
        for name, want in slices(given, prefix).items():
            assert relative(tensor_of(policy, name, gradient=True)[: len(want)], want) <= close_to, name
    if side is EXACT and kind != "atsp":
        Adam(policy.parameters(), lr=1e-4, weight_decay=1e-6).step()
        for name, want in slices(given, "after_adam_first_8_rows/").items():
            assert far(tensor_of(policy, name)[: len(want)], want) <= 1e-12, name


def _descend(problem: Any, policy: Any, inst: Instances, tours: torch.Tensor, side: Side) -> torch.Tensor:
    """The loss of each instance; the gradient of their mean is in the policy."""
    with precision(side) as engine:
        tables, world = policy.encode(inst, engine=engine), problem.world(inst)
        cost = problem.cost(inst, tours)
        loss, _ = tour_losses(PretrainSection(), engine, tables, world, tours, cost)
        loss.mean().backward()
    return loss.detach()


def test_closure_and_first_embeddings_of_atsp_are_the_published_ones(shared: Path) -> None:
    """The triangle inequality in whole numbers, and the one-hot vectors that the stored seeds stand for."""
    file = golden(shared, "matnet_atsp")
    closed = close(torch.from_numpy(file["open_units"]))
    assert torch.equal(closed, torch.from_numpy(file["closed_units"]))
    inst = seeded(closed.double().div(1e6).float())
    assert torch.equal(inst.matrix, file.tensor("matrix"))
    one_hot = load("policies", "matnet").one_hot
    assert torch.equal(one_hot(file.tensor("instance_seed"), 20, 20, 32).argmax(-1), file.tensor("one_hot_of_node"))
