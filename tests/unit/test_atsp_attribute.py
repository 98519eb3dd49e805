"""The attribute attack on cost matrices: the published joint min-max, and what can be repaired afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cnf_cli.attacks import attribute, noise
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.policies import matnet
from cnf_cli.policies.run import rollout
from cnf_cli.problems import atsp, tsp
from cnf_cli.problems.instances import Instances

PROBLEM = atsp.Problem(atsp.Params(n=7))
OFF = ~torch.eye(7, dtype=torch.bool)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def policy() -> matnet.Policy:
    return matnet.Policy(matnet.Params(width=16, layers=1, heads=4, feed_forward=16), PROBLEM).init(rng(0))


def attacked(**keys: Any) -> tuple[Instances, torch.Tensor, dict[str, torch.Tensor]]:
    clean = PROBLEM.sample(5, rng=rng(1))
    out = attribute.Attack(attribute.Params(**keys), PROBLEM, TorchEngine())([policy()], clean, rng=rng(2))
    assert out.instances.matrix is not None
    return clean, out.instances.matrix, out.stats


def test_all_costs_are_stretched_together() -> None:
    """Each attacked matrix reaches from exactly 0 to exactly 1 off its zero diagonal, and little is left of clean."""
    clean, matrix, stats = attacked()
    assert clean.matrix is not None
    assert (matrix.diagonal(dim1=1, dim2=2) == 0).all()
    assert matrix[:, OFF].amin(1).tolist() == [0] * 5
    assert matrix[:, OFF].amax(1).tolist() == [1] * 5
    moved = (matrix - clean.matrix).abs().amax(2)
    torch.testing.assert_close(stats["moved_mean"], moved.mean(1), rtol=1e-4, atol=1e-6)
    assert (stats["zero_gradient"] == 0).all()
    assert (stats["nonfinite_gradient"] == 0).all()


def test_gradient_is_that_of_finite_differences() -> None:
    """A small step along the gradient raises the objective by its squared length, to first order."""
    from cnf_cli.attacks.gradient import gradient, roll

    model, clean, engine = policy().double(), PROBLEM.sample(1, rng=rng(1)), TorchEngine()
    assert clean.matrix is not None
    clean = clean.with_(matrix=clean.matrix.double())
    assert clean.matrix is not None
    rolled = roll(model, PROBLEM, engine, clean, torch.tensor([5]))
    grad = gradient(model, PROBLEM, engine, clean, rolled, "hac", ("matrix",))["matrix"]

    def objective(matrix: torch.Tensor) -> float:
        inst = clean.with_(matrix=matrix)
        cost = PROBLEM.cost(inst, rolled.tours)
        log_p = engine.log_prob(model.encode(inst), PROBLEM.world(inst), rolled.tours)
        return float((cost / cost.mean() * log_p).mean().detach())

    step = 1e-5 * grad / grad.norm()
    rise = objective(clean.matrix + step) - objective(clean.matrix - step)
    assert rise / 2e-5 == pytest.approx(float(grad.norm()), rel=1e-3)


def test_repairs() -> None:
    """Symmetric: both directions cost the same. Triangle: no detour pays. Both together, both hold."""
    for names in [("symmetric",), ("triangle",), ("symmetric", "triangle")]:
        _, matrix, _ = attacked(repair=names)
        assert torch.equal(matrix, matrix.transpose(1, 2)) == ("symmetric" in names)
        shortest = (matrix[:, :, :, None] + matrix[:, None, :, :]).amin(2)
        assert bool((matrix <= shortest + 1e-6).all()) == ("triangle" in names)
        assert ((matrix >= 0) & (matrix <= 1)).all()


def test_several_steps_and_several_models() -> None:
    """Two steps against two models stay in the domain, and sampled tours on the result are finite."""
    clean = PROBLEM.sample(5, rng=rng(1))
    attack = attribute.Attack(attribute.Params(steps=2), PROBLEM, TorchEngine())
    other = policy().init(rng(9))
    out = attack([policy(), other], clean, rng=rng(2)).instances
    assert rollout(other, PROBLEM, out, TorchEngine(), seeds=torch.arange(5))[1].isfinite().all()


def test_what_makes_no_sense_is_refused() -> None:
    """Budgets and places for a matrix, repairs for coordinates, and noise on a matrix are errors that say so."""
    bounded = attribute.Params(budget=attribute.BudgetSection(radius=0.1))
    with pytest.raises(RecipeError, match="atsp has neither"):
        attribute.Attack(bounded, PROBLEM, TorchEngine())
    with pytest.raises(RecipeError, match="atsp has no"):
        attribute.Attack(attribute.Params(attributes=("demand",)), PROBLEM, TorchEngine())
    with pytest.raises(RecipeError, match="tsp has none"):
        attribute.Attack(attribute.Params(repair=("triangle",)), tsp.Problem(tsp.Params()), TorchEngine())
    with pytest.raises(RecipeError, match="atsp has none"):
        noise.Attack(noise.Params(), PROBLEM, TorchEngine())
