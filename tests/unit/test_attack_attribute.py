"""The attribute attack: what was released, what the paper writes, and what a budget allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.attacks.attribute import Attack, BudgetSection, Params
from cnf_cli.attacks.base import checks
from cnf_cli.attacks.gradient import gradient, roll
from cnf_cli.attacks.hardness import Hardest
from cnf_cli.engine.random import seeds_from
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.problems.instances import Instances

ENGINE = TorchEngine()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(kind: str = "tsp", n: int = 7, models: int = 1) -> tuple[Any, list[Any]]:
    problems, policies = plugins.load("problems", kind), plugins.load("policies", "pomo")
    problem = problems.Problem(problems.Params(n=n))
    params = policies.Params(width=16, layers=1, heads=2, feed_forward=16)
    return problem, [policies.Policy(params, problem).init(rng(10 + j)) for j in range(models)]


def attack(problem: Any, **keys: Any) -> Attack:
    return Attack(Params(**keys), problem, ENGINE)


def min_max(x: Tensor) -> Tensor:
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return (x - low) / (high - low)


def raw_gradient(policy: Any, problem: Any, inst: Instances, seed: int, fields: tuple[str, ...]) -> dict[str, Tensor]:
    """The gradient the attack must have used, from the same draws: its first use of the generator is the seeds."""
    rolled = roll(policy, problem, ENGINE, inst, seeds_from(rng(seed), len(inst)))
    return gradient(policy, problem, ENGINE, inst, rolled, "hac", fields)


def test_released_step_is_alpha_over_batch_then_min_max() -> None:
    """Released: X + alpha/(b P) sum_p grad, always stretched to the unit square per axis; the batch size matters."""
    problem, (policy,) = small()
    inst = problem.sample(4, rng=rng(1))
    alpha = torch.full((4,), 30.0)
    out = attack(problem)([policy], inst, rng=rng(5), step=alpha)
    expected = min_max(inst.xy + 30 / 4 * raw_gradient(policy, problem, inst, 5, ("xy",))["xy"])
    torch.testing.assert_close(out.instances.xy, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(out.instances.xy.amin(1), torch.zeros(4, 2))
    assert torch.equal(out.instances.xy.amax(1), torch.ones(4, 2))
    ten = attack(problem, scaling_batch=10)([policy], inst, rng=rng(5), step=alpha)
    expected = min_max(inst.xy + 30 / 10 * raw_gradient(policy, problem, inst, 5, ("xy",))["xy"])
    torch.testing.assert_close(ten.instances.xy, expected, rtol=1e-5, atol=1e-6)


def test_released_cvrp_moves_customers_only() -> None:
    """Released CVRP: the depot stays and is no part of the min-max; demands stay bit for bit."""
    problem, (policy,) = small("cvrp")
    inst = problem.sample(3, rng=rng(1))
    out = attack(problem)([policy], inst, rng=rng(5), step=torch.full((3,), 20.0)).instances
    grad = raw_gradient(policy, problem, inst, 5, ("xy",))["xy"]
    torch.testing.assert_close(out.xy[:, 1:], min_max(inst.xy[:, 1:] + 20 / 3 * grad[:, 1:]), rtol=1e-5, atol=1e-6)
    assert torch.equal(out.xy[:, 0], inst.xy[:, 0])
    assert torch.equal(out.demand, inst.demand)


def test_alpha_zero_returns_the_instance_unprojected() -> None:
    """Released quirk: a step size of 0 returns X itself, without the min-max that any other step ends with."""
    problem, (policy,) = small()
    inst = problem.sample(3, rng=rng(1))
    out = attack(problem, step_low=0)([policy], inst, rng=rng(5), step=torch.tensor([0.0, 1e-6, 0.0])).instances
    assert torch.equal(out.xy[[0, 2]], inst.xy[[0, 2]])
    assert (out.xy[1] - inst.xy[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("mode", "levels"), [("released", 9), ("paper", 8)])
def test_demands_follow_their_own_projection(mode: str, levels: int) -> None:
    """ceil(9u) as released, ceil(8u) as the paper writes, both in 1..9 units; places and demands share one gradient."""
    problem, (policy,) = small("cvrp")
    inst = problem.sample(4, rng=rng(1))
    keys: dict[str, Any] = {"mode": mode, "attributes": ("customers", "demand"), "step_scaling": "instance"}
    out = attack(problem, **keys)([policy], inst, rng=rng(5), step=torch.full((4,), 3.0)).instances
    grad = raw_gradient(policy, problem, inst, 5, ("xy", "demand"))["demand"]
    moved = inst.demand[:, 1:] + 3 * grad[:, 1:]
    expected = (levels * min_max(moved)).ceil().clamp(1, 9)
    torch.testing.assert_close(out.demand[:, 1:] * inst.capacity[:, None], expected, rtol=0, atol=1e-4)
    assert torch.equal(out.demand[:, 0], torch.zeros(4))


def test_paper_mode_projects_only_what_left_the_map() -> None:
    """Paper: the step is not divided by the batch, and an instance still inside the unit square stays as it is."""
    problem, (policy,) = small()
    inst = problem.sample(4, rng=rng(1))
    inst = inst.with_(xy=0.25 + 0.5 * inst.xy)
    grad = raw_gradient(policy, problem, inst, 5, ("xy",))["xy"]
    alpha = torch.tensor([0.01, 0.01, 1e4, 1e4])
    out = attack(problem, mode="paper")([policy], inst, rng=rng(5), step=alpha)
    raw = inst.xy + alpha[:, None, None] * grad
    torch.testing.assert_close(out.instances.xy[:2], raw[:2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.instances.xy[2:], min_max(raw)[2:], rtol=1e-4, atol=1e-5)
    assert out.stats["projected"].tolist() == [0, 0, 1, 1]


def test_paper_mode_attacks_demands_of_cvrp() -> None:
    """What is attacked by default: places, and demands only in paper mode."""
    problem, _ = small("cvrp")
    assert attack(problem).names == ("customers",)
    assert attack(problem, mode="paper").names == ("customers", "demand")
    assert attack(problem, mode="paper", budget=BudgetSection(radius=0.1)).names == ("customers",)
    assert attack(problem, budget=BudgetSection(demand=2)).names == ("demand",)


def test_global_attack_on_one_policy_is_the_local_attack() -> None:
    """With copies of one policy the global attack is the local one, but for sharing the batch; order is kept."""
    problem, (policy,) = small()
    inst = problem.sample(5, rng=rng(1))
    for keys in ({"step_scaling": "instance", "steps": 2}, {"budget": BudgetSection(radius=0.05), "steps": 3}):
        local = attack(problem, **keys)([policy], inst, rng=rng(5))
        both = attack(problem, **keys)([policy, policy], inst, rng=rng(5))
        assert both.best is not None
        assert both.best.tolist() == [0] * 5
        torch.testing.assert_close(local.instances.xy, both.instances.xy, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(local.clean_cost, both.clean_cost[:, :1])


@pytest.mark.parametrize("fresh", [False, True])
def test_global_attack_uses_each_instances_best_policy(fresh: bool) -> None:
    """One step of the global attack: row i is the local attack of the policy with the lowest cost on i, in order."""
    problem, policies = small(models=3)
    inst = problem.sample(12, rng=rng(1))
    seeds = seeds_from(rng(5), 12)
    costs = torch.stack([roll(p, problem, ENGINE, inst, seeds).best for p in policies], 1)
    out = attack(problem, step_scaling="instance", step_low=7, step_high=7, fresh_rollouts=fresh)(
        policies, inst, rng=rng(5), step=torch.full((12,), 7.0)
    )
    assert torch.equal(out.best, costs.argmin(1))
    assert len(out.best.unique()) > 1
    torch.testing.assert_close(out.clean_cost, costs)
    again = rng(5)
    seeds = [seeds_from(again, 12) for _ in range(2)][int(fresh)]
    for j, policy in enumerate(policies):
        rows = (out.best == j).nonzero()[:, 0]
        rolled = roll(policy, problem, ENGINE, inst[rows], seeds[rows])
        grad = gradient(policy, problem, ENGINE, inst[rows], rolled, "hac", ("xy",))["xy"]
        expected = min_max(inst.xy[rows] + 7 * grad)
        torch.testing.assert_close(out.instances.xy[rows], expected, rtol=1e-4, atol=1e-5)


def test_released_global_step_divides_by_the_models_own_share() -> None:
    """Released: the global attack's batch is the sub-batch of the instances that share a best policy."""
    problem, _ = small()
    one = attack(problem)
    scaled = one._scaled(torch.full((5,), 6.0), torch.tensor([0, 1, 0, 0, 1]))
    assert scaled.tolist() == [2, 3, 2, 2, 3]
    assert (
        attack(problem, step_draw="grid")._scaled(torch.full((2,), 6.0), torch.tensor([0, 1])).tolist()
        == [pytest.approx(0.6)] * 2
    )


def test_the_grid_is_the_papers_test_set_rule() -> None:
    """1000 instances: ten each of alpha = 1..100 in order; other counts spread the same range evenly."""
    problem, _ = small()
    grid = attack(problem, step_draw="grid")
    assert torch.equal(grid.draw(1000, rng()), (torch.arange(1000) // 10 + 1).float())
    assert torch.equal(grid.draw(100, rng()), torch.arange(1, 101).float())
    assert grid.draw(3000, rng())[[0, 29, 30, -1]].tolist() == [1, 1, 2, 100]


def test_step_sizes_are_whole_and_drawn_from_the_generator() -> None:
    """One alpha per batch, or one per instance; always whole numbers from low to high, both ends possible."""
    problem, _ = small()
    assert len(attack(problem).draw(50, rng(1)).unique()) == 1
    drawn = attack(problem, step_draw="instance", step_low=2, step_high=4).draw(300, rng(1))
    assert drawn.unique().tolist() == [2, 3, 4]
    assert torch.equal(drawn, attack(problem, step_draw="instance", step_low=2, step_high=4).draw(300, rng(1)))


def test_parts_with_given_steps_make_the_whole() -> None:
    """A set can be attacked in parts: with its own seeds and steps, an instance does not see its neighbours."""
    problem, (policy,) = small()
    inst = problem.sample(4, rng=rng(1))
    one = attack(problem, scaling_batch=10, objective="greedy")
    step = torch.tensor([3.0, 5.0, 7.0, 9.0])
    whole = one([policy], inst, rng=rng(), step=step).instances.xy
    parts = [one([policy], inst[i : i + 2], rng=rng(), step=step[i : i + 2]).instances.xy for i in (0, 2)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-4, atol=1e-5)


def test_keep_best_never_ends_below_the_clean_instance() -> None:
    """The kept instance is the hardest of all steps and the clean one, by a bound that a known tour proves."""
    problem, (policy,) = small(n=9)
    inst = problem.sample(6, rng=rng(1))
    out = attack(problem, budget=BudgetSection(radius=0.1), steps=4)([policy], inst, rng=rng(5))
    cost = roll(policy, problem, ENGINE, out.instances, None).best
    torch.testing.assert_close(out.stats["cost_after"], cost)
    assert (out.stats["hardness"] >= 0).all()
    assert out.stats["hardness"].max() > 0


def test_hardness_is_never_more_than_the_true_gap() -> None:
    """Hardness is (cost / a real tour's cost) - 1, so the optimum by enumeration can only make the gap larger."""
    from itertools import permutations

    problem, (policy,) = small(n=6)
    inst = problem.sample(4, rng=rng(1))
    hardest = Hardest([policy], problem, ENGINE)
    hardest.offer(inst)
    hardest.offer(problem.sample(4, rng=rng(2)))
    hardest.learn([roll(policy, problem, ENGINE, inst, torch.arange(4))])
    picked, cost, hard = hardest.pick()
    every = torch.tensor([(0, *rest) for rest in permutations(range(1, 6))]).expand(4, -1, -1)
    gap = cost / problem.cost(picked, every).amin(1) - 1
    assert (hard <= gap + 1e-5).all()


def test_known_tours_must_be_feasible_after_demands_changed() -> None:
    """A tour learnt on lighter demands does not count as known where it would overload the vehicle."""
    problem, (policy,) = small("cvrp", n=4)
    xy = torch.rand(1, 5, 2, generator=rng(1))
    light = Instances(xy, torch.tensor([[0, 0.25, 0.25, 0.25, 0.25]]), torch.tensor([4.0]))
    heavy = light.with_(demand=torch.tensor([[0, 1.0, 1.0, 1.0, 1.0]]))
    hardest = Hardest([policy], problem, ENGINE)
    hardest.offer(light)
    hardest.offer(heavy)
    assert float(hardest._hardness(heavy, hardest.costs[1])) == 0


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"step_low": 5, "step_high": 2}, "step_low"),
        ({"budget": BudgetSection(radius=0.1), "projection": "clip"}, "budget"),
        ({"budget": BudgetSection(nodes=3), "scaling_batch": 10}, "budget"),
        ({"steps": 0}, "steps"),
        ({"attributes": ("colour",)}, "attributes"),
    ],
)
def test_contradictory_keys_are_refused(keys: dict[str, Any], word: str) -> None:
    """A recipe that asks for two things at once is told so, by the key's name."""
    with pytest.raises(ValidationError, match=word):
        Params(**keys)


def test_an_attribute_the_problem_lacks_is_refused() -> None:
    """TSP has no demands to attack: the error names what it has."""
    problem, _ = small()
    with pytest.raises(RecipeError, match="tsp has no 'demand'"):
        attack(problem, attributes=("demand",))


def test_checks_warn_when_numbers_should_not_be_trusted() -> None:
    """Zero gradients, non-finite gradients, maps that left their clean one and maps that did not move are all named."""
    fine = {name: torch.zeros(20) for name in ("zero_gradient", "nonfinite_gradient", "projected", "demand_changed")}
    fine |= {"moved_mean": torch.full((20,), 0.02), "moved_max": torch.full((20,), 0.05), "nodes_moved": torch.ones(20)}
    assert checks(fine)["warnings"] == []
    cases = {"zero_gradient": "zero gradient", "nonfinite_gradient": "non-finite", "moved_mean": "little to do"}
    for name, text in cases.items():
        (warning,) = checks(fine | {name: torch.full((20,), 0.5)})["warnings"]
        assert text in warning
    assert "nothing changed" in checks(fine | {"moved_max": torch.zeros(20)})["warnings"][0]


def test_the_released_attack_is_flagged_as_saturated() -> None:
    """At large steps nothing of the clean map is left, and the attack's own numbers say so."""
    problem, (policy,) = small(n=20)
    out = attack(problem)([policy], problem.sample(20, rng=rng(1)), rng=rng(5), step=torch.full((20,), 1e6))
    found = checks(out.stats)
    assert found["projected_share"] == 1
    assert found["moved_mean"] > 0.3
    assert any("little to do" in text for text in found["warnings"])


def test_policies_keep_their_mode() -> None:
    """The attack runs in evaluation mode and hands the policies back as they were, also after an error."""
    problem, (policy,) = small()
    policy.train()
    attack(problem)([policy], problem.sample(2, rng=rng(1)), rng=rng(5))
    assert policy.training
    with pytest.raises(RuntimeError):
        attack(problem)([policy], problem.sample(2, rng=rng(1)), rng=rng(5), step=torch.ones(3))
    assert policy.training
