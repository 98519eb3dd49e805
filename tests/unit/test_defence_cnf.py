"""The CNF step: its pool, its switches, and that leaving work out changes no result."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cnf_cli.attacks.base import Attacked
from cnf_cli.defences import base, cnf
from cnf_cli.defences.base import draw_seeds
from cnf_cli.defences.pool import cost_matrix, make_pool
from cnf_cli.defences.routing import CLEAN, GLOBAL, LOCAL
from cnf_cli.engine.random import seeds_from
from tests.unit.defence_kit import Run, same, small_attack, small_models, small_problem

B, M = 4, 3


@pytest.fixture(params=["tsp", "cvrp"])
def problem(request: pytest.FixtureRequest) -> Any:
    return small_problem(request.param)


def twin(rng: torch.Generator) -> torch.Generator:
    return torch.Generator().set_state(rng.get_state())


def test_pool_order(problem) -> None:
    """The pool is b clean, b local per model and b global instances, each kind labelled, clean ones untouched."""
    run = Run("cnf", problem)
    pool = make_pool(run.defence.attack, run.models, run.clean, run.rng)
    assert pool.kind.tolist() == [CLEAN] * B + [LOCAL] * M * B + [GLOBAL] * B
    assert pool.maker.tolist() == [-1] * B + [j for j in range(M) for _ in range(B)] + [-1] * B
    assert torch.equal(pool.instances.xy[:B], run.clean.xy)
    assert len(make_pool(run.defence.attack, run.models, run.clean, run.rng, global_attack=False)) == (M + 1) * B


def test_local_and_global_attacks_share_one_step_size(problem) -> None:
    """One alpha is drawn per CNF step and used by every attack in it."""
    seen: list[torch.Tensor] = []
    attack = small_attack(problem)

    class Spy:
        params, draw = attack.params, staticmethod(attack.draw)

        def __call__(self, *args: Any, step: torch.Tensor | None = None, **more: Any) -> Attacked:
            seen.append(step)
            return attack(*args, step=step, **more)

    run = Run("cnf", problem)
    make_pool(Spy(), run.models, run.clean, run.rng)
    assert len(seen) == M + 1
    assert all(torch.equal(step, seen[0]) for step in seen)


def test_clean_costs_of_the_attack_are_r(problem) -> None:
    """R on clean rows, taken from the local attacks, equals evaluating the models with the attacks' seeds."""
    run = Run("cnf", problem)
    rng = twin(run.rng)
    pool = make_pool(run.defence.attack, run.models, run.clean, run.rng)
    run.defence.attack.draw(B, rng)
    seeds = torch.zeros(len(pool), M, dtype=torch.long)
    for j in range(M):
        seeds[:B, j] = seeds_from(rng, B)
    plain, _ = cost_matrix(run.defence, run.models, pool, seeds, torch.arange(B))
    assert torch.allclose(pool.clean_cost, plain[:B], atol=1e-6)
    known, _ = cost_matrix(run.defence, run.models, pool, seeds, use_known=True)
    assert torch.equal(known[:B], pool.clean_cost)


def test_one_step_global_instance_is_the_best_models_local_one(problem) -> None:
    """With equal seeds and per-instance scaling a one-step global attack gives what the best model's local one gave."""
    attack, models = small_attack(problem, step_scaling="instance"), small_models(problem)
    clean = problem.sample(B, rng=torch.Generator().manual_seed(1))
    step = torch.full((B,), 3.0)
    local = [attack([m], clean, rng=torch.Generator().manual_seed(2), step=step) for m in models]
    together = attack(models, clean, rng=torch.Generator().manual_seed(2), step=step)
    best = torch.cat([one.clean_cost for one in local], 1).argmin(1)
    assert torch.equal(best, together.best)
    for i, j in enumerate(best.tolist()):
        assert torch.allclose(together.instances.xy[i], local[j].instances.xy[i], atol=1e-5)


def test_copied_global_rows(problem) -> None:
    """A copied global row is its source row, made by the model with the lowest clean cost; several steps never copy."""
    run = Run("cnf", problem)
    pool = make_pool(run.defence.attack, run.models, run.clean, run.rng, copy_global=True)
    globals_ = (pool.kind == GLOBAL).nonzero()[:, 0]
    assert torch.equal(pool.instances.xy[globals_], pool.instances.xy[pool.source[globals_]])
    assert torch.equal(pool.maker[pool.source[globals_]], pool.clean_cost.argmin(1))
    twice = make_pool(small_attack(problem, steps=2), run.models, run.clean, run.rng, copy_global=True)
    assert torch.equal(twice.source, torch.arange(len(twice)))


def test_cost_matrix_on_some_rows_equals_all_rows(problem) -> None:
    """R' on selected rows is the same numbers as R' on the whole pool; other rows are left out."""
    run = Run("cnf", problem)
    pool = make_pool(run.defence.attack, run.models, run.clean, run.rng, copy_global=True)
    seeds = draw_seeds(run.rng, len(pool), M)
    rows = torch.tensor([0, 3, 7, len(pool) - 1])
    some, _ = cost_matrix(run.defence, run.models, pool, seeds, rows)
    every, _ = cost_matrix(run.defence, run.models, pool, seeds)
    assert torch.allclose(some[rows], every[rows], atol=1e-6)
    assert int(some.isnan().all(1).sum()) == len(pool) - len(rows)
    assert torch.equal(every, every[pool.source])


class FixedAttack:
    """A stand-in whose rollout seeds are known, so that a whole step can be computed in both ways."""

    params = SimpleNamespace(steps=1)

    def __init__(self, run: Run) -> None:
        self.run, self.seeds = run, torch.arange(M * B).view(M, B) + 100

    def draw(self, count: int, rng: torch.Generator) -> torch.Tensor:
        return torch.ones(count)

    def __call__(self, policies, clean, *, rng, step=None) -> Attacked:
        index = [next(j for j, m in enumerate(self.run.models) if m is p) for p in policies]
        cost = torch.stack([self.run.defence.roll(self.run.models[j], clean, self.seeds[j]).best for j in index], 1)
        best = torch.tensor(index)[cost.argmin(1)]
        moved = (clean.xy + 0.1 * (best + 1)[:, None, None] * clean.xy.flip(1)).clamp(0, 1)
        return Attacked(clean.with_(xy=moved), {}, best, cost)


def paired_run(problem: Any, monkeypatch: pytest.MonkeyPatch, train_as_before: bool = False, **keys: Any) -> Run:
    """A run whose clean rows are evaluated with the attack's seeds, and global rows with their sources' seeds."""
    run = Run("cnf", problem, models=small_models(problem), **keys)
    run.plain_descent()
    attack = run.defence.attack = FixedAttack(run)
    best = attack(run.models, run.clean, rng=run.rng).best

    def seeds(rng: torch.Generator, *shape: int, **_: Any) -> torch.Tensor:
        before, train, after = torch.arange(3 * (M + 2) * B * M).view(3, (M + 2) * B, M) + 1000
        before[:B] = attack.seeds.T
        for part in (before, after):
            part[-B:] = part[B + best * B + torch.arange(B)]
        return torch.stack([before, before if train_as_before else train, after])

    monkeypatch.setattr(cnf, "draw_seeds", seeds)
    return run


@pytest.mark.parametrize("routing", ["m-topk", "topk-with-best", "i-sample", "best", "balanced", "random"])
def test_efficient_step_equals_the_plain_one(problem, monkeypatch: pytest.MonkeyPatch, routing: str) -> None:
    """With equal seeds, mode efficient selects, trains and routes exactly as mode paper does: same metrics, weights."""
    plain = paired_run(problem, monkeypatch, mode="paper", routing=routing)
    expected = plain.step()
    quick = paired_run(problem, monkeypatch, mode="efficient", routing=routing)
    got = quick.step()
    assert got.keys() == expected.keys()
    assert all(got[k] == pytest.approx(expected[k], rel=1e-4, abs=1e-5) for k in got)
    assert same(plain.weights(), quick.weights(), 1e-5)


def test_efficient_step_does_less(problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode efficient rolls out fewer instances than mode paper for the same step."""
    counts = {}
    for mode in ("paper", "efficient"):
        run = paired_run(problem, monkeypatch, mode=mode, routing="m-topk")
        counts[mode], roll = 0, run.defence.roll

        def counted(model, inst, seeds, mode=mode, roll=roll):
            counts[mode] += len(inst)
            return roll(model, inst, seeds)

        run.defence.roll = counted
        run.step()
    # Attack: M b local, and M b to find the best model; R and R' on (M + 2) b rows for M models each.
    assert counts["paper"] == M * B + M * B + 2 * M * (M + 2) * B
    assert counts["efficient"] <= M * B + M * M * B + M * min(M, M + 1) * B


@pytest.mark.parametrize("loss", ["reinforce", "leader", "preference"])
def test_training_on_the_tours_of_r(problem, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """reuse_tours equals sampling for training with the seeds R was sampled with, whatever the loss."""
    keys = {"mode": "efficient", "routing": "m-topk", "loss": loss}
    again = paired_run(problem, monkeypatch, train_as_before=True, reuse=False, **keys)
    expected = again.step()
    replay = paired_run(problem, monkeypatch, reuse_tours=True, **keys)
    got = replay.step()
    assert got["loss_0"] == pytest.approx(expected["loss_0"], rel=1e-4)
    assert same(again.weights(), replay.weights(), 1e-5)


def test_common_random_numbers_without_training_give_zero_reward(problem) -> None:
    """With common random numbers and no learning R' equals R; without them the reward is sampling noise."""
    for shared in (True, False):
        run = Run("cnf", problem, common_random_numbers=shared, routing="m-topk")
        run.optimizers = [torch.optim.SGD(m.parameters(), lr=0.0) for m in run.models]
        metrics = run.step()
        assert (metrics["router_reward_std"] < 1e-5) == shared


@pytest.mark.parametrize(
    ("keys", "strategy"),
    [
        ({"mode": "paper"}, "m-topk"),
        ({"mode": "released"}, "topk-with-best"),
        ({"mode": "efficient"}, "topk-with-best"),
        ({"mode": "paper", "router": False}, "random"),
        ({"routing": "best", "router": False}, "best"),
        ({"mode": "paper", "routing": "i-topk"}, "i-topk"),
    ],
)
def test_mode_decides_the_routing(keys: dict[str, Any], strategy: str) -> None:
    """`auto` follows the mode; a named strategy wins; without the router, strategies that need it become random."""
    assert Run("cnf", small_problem(), **keys).defence.routing == strategy


def test_without_router_loads_differ_only_in_mode_released() -> None:
    """The published code's overlapping random slices exist in mode released only."""
    problem = small_problem()
    n = (M + 2) * B
    loads = {}
    for mode in ("released", "paper", "efficient"):
        metrics = Run("cnf", problem, mode=mode, router=False).step()
        loads[mode] = [metrics[f"load_{j}"] for j in range(M)]
    assert loads["released"] == [n, n - n // 3, n - 2 * (n // 3)]
    assert max(loads["paper"]) - min(loads["paper"]) <= 1
    assert max(loads["efficient"]) - min(loads["efficient"]) <= 1


def test_global_attack_switch() -> None:
    """Without the global attack no row is global."""
    metrics = Run("cnf", small_problem(), global_attack=False, routing="random").step()
    assert all(metrics[f"share_global_{j}"] == 0 for j in range(M))
    assert sum(metrics[f"load_{j}"] for j in range(M)) == (M + 1) * B


def test_model_without_rows_keeps_its_weights() -> None:
    """A model that gets no instance takes no step, not even a decayed one."""
    run = Run("cnf", small_problem(), routing="best")
    weak = copy.deepcopy(run.models[0])
    with torch.no_grad():
        run.defence.route = lambda pool, cost, rng: cnf.Selection(
            [torch.arange(len(pool)), torch.arange(0), torch.arange(3)]
        )
        before = [p.clone() for p in run.models[1].parameters()]
    run.step()
    assert same(before, list(run.models[1].parameters()))
    assert not same(list(weak.parameters()), list(run.models[0].parameters()))


@pytest.mark.parametrize("reuse_tours", [False, True])
def test_large_batches_are_worked_off_in_parts(problem, monkeypatch: pytest.MonkeyPatch, reuse_tours: bool) -> None:
    """Evaluating and training rows a few at a time gives the step of the whole batch."""
    whole = paired_run(problem, monkeypatch, mode="efficient", reuse_tours=reuse_tours)
    expected = whole.step()
    monkeypatch.setitem(base.ROOM, "cpu", 3 * problem.params.n)
    parts = paired_run(problem, monkeypatch, mode="efficient", reuse_tours=reuse_tours)
    got = parts.step()
    assert all(got[k] == pytest.approx(expected[k], rel=1e-4, abs=1e-5) for k in got)
    assert same(whole.weights(), parts.weights(), 1e-5)
