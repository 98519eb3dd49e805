"""A whole step of CNF, its router, HAC's weights and the evaluation are the published code's (golden files)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Adam

from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences import cnf
from cnf_cli.defences.base import Clock, hardness
from cnf_cli.defences.hac import Params, temperature, weights
from cnf_cli.defences.router import Router
from cnf_cli.defences.routing import STRATEGIES, Question
from cnf_cli.evaluation import statistics as stats
from cnf_cli.problems.instances import Instances
from tests.unit.published_kit import (
    CAPACITY,
    EXACT,
    SIDES,
    Golden,
    Side,
    drawn,
    far,
    fill,
    golden,
    instances,
    policy_of,
    precision,
    problem_of,
    tensor_of,
)
from tests.unit.test_published_attacks import released

ALPHA, M, B = 37.0, 3, 8
ROUTING = {
    "exp_choice_with_best": "topk-with-best",
    "exp_choice": "m-topk",
    "ins_choice": "i-topk",
    "best": "best",
    "random": "random",
}


def taken(file: Golden, name: str, kind: str, side: Side, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What one CNF step with the stored seeds made of the stored instances."""
    given, steps, routing = file.below(name), int(name[1]), name.split("_", 1)[1].removesuffix("_demand")
    demand = {"attributes": ("customers", "demand")} if name.endswith("_demand") else {}
    models = [policy_of(kind, "small", side, seed=10 + j) for j in range(M)]
    optimizers = [Adam(model.parameters(), lr=1e-4, weight_decay=1e-6) for model in models]
    seeds = given.below("seeds")
    local, choose, world = (seeds.tensor(key) for key in ("local", "choose", "global"))
    # A local attack samples once a step; the global one to choose the best model, and again to attack it.
    order = [*local.flatten(0, 1), *torch.stack([choose, world], 1).flatten(0, 1)]
    keys = {"mode": "released", "routing": ROUTING[routing], "router": routing not in ("best", "random")}
    params = cnf.Params(batch_size=B, router_width=64, ties="first", **keys)
    seen: dict[str, Any] = {}

    class Seen(cnf.Defence):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.attack = more["attack"]

        def evaluate(self, models: Any, pool: Any, seeds: Tensor) -> Any:
            found = super().evaluate(models, pool, seeds)
            seen.setdefault("pool", pool.instances)
            seen["R"] = found[0]
            return found

        def route(self, *args: Any) -> Any:
            seen["chosen"] = super().route(*args)
            return seen["chosen"]

    with precision(side) as engine:
        attack = released(kind, engine, iter(order), steps=steps, fresh_rollouts=True, **demand)
        attack.draw = lambda count, rng: torch.full((count,), ALPHA)
        defence = Seen(params, problem=problem_of(kind), engine=engine, attack=attack)
        defence.setup(models, "cpu", torch.Generator().manual_seed(0))
        if defence.router is not None:
            fill(defence.router, 5)
            defence.router.to(side.dtype)
        drawn_seeds = torch.stack([seeds.tensor(key) for key in ("before", "train", "after")])
        patch.setattr(cnf, "draw_seeds", lambda *shape, **_: drawn_seeds)
        if "order" in given:
            patch.setattr(torch, "randperm", lambda *_, **__: given.tensor("order"))
        inst = instances(file, side, "clean/")
        metrics = defence.step(models, optimizers, inst, clock=Clock(0, 0, 0.0), rng=torch.Generator())
    return seen | {"models": models, "router": defence.router, "metrics": metrics}


def check(file: Golden, name: str, kind: str, got: dict[str, Any], close_to: tuple[float, float, float, float]) -> None:
    """Pool, R, selections, losses and the router's loss are the stored ones."""
    given = file.below(name)
    pool_far, cost_far, loss_far, router_far = close_to
    assert far(got["pool"].xy, given.tensor("pool/xy")) <= pool_far
    if kind == "cvrp":
        units = (got["pool"].demand[:, 1:] * CAPACITY).round().long()
        assert torch.equal(units, given.tensor("pool/demand_units"))
    if not got["R"].isnan().any():
        assert far(got["R"], given.tensor("R")) <= cost_far
    trained = torch.zeros(given["trained"].shape, dtype=torch.bool)
    for j, rows in enumerate(got["chosen"].trained):
        trained[rows, j] = True
    assert torch.equal(trained, torch.from_numpy(given["trained"]))
    for j, want in enumerate(given["loss"]):
        if want == want:
            assert abs(got["metrics"][f"loss_{j}"] - want) <= loss_far
    if "router/loss" in given:
        assert abs(got["metrics"]["router_loss"] - float(given["router/loss"])) <= router_far


STEPS = [("tsp", f"T1_{name}") for name in ROUTING] + [
    ("tsp", "T2_exp_choice_with_best"),
    ("cvrp", "T1_exp_choice_with_best"),
    ("cvrp", "T2_exp_choice"),
    ("cvrp", "T2_exp_choice_with_best_demand"),
]


@pytest.mark.parametrize(("kind", "name"), STEPS)
def test_a_step_is_the_published_one(shared: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack, evaluation, routing, training and the router's update: the same pool, rows, losses and new weights."""
    file = golden(shared, f"cnf_step_{kind}")
    given = file.below(name)
    got = taken(file, name, kind, EXACT, monkeypatch)
    # alpha over a number of rows is rounded to float32, and every step of the attack adds to that.
    check(file, name, kind, got, (2e-8, 4e-8, 1e-8, 1e-8) if name.startswith("T1") else (1e-7, 2e-7, 5e-8, 5e-8))
    for j, model in enumerate(got["models"]):
        for part in ("decoder.combine.weight", "decoder.last.weight"):
            want = given.tensor(f"after/model{j}/{part}_first_4_rows")
            assert far(tensor_of(model, part)[:4], want) <= 1e-6, (j, part)
    if got["router"] is not None:
        assert far(got["router"].Wq.weight.grad[:4], given.tensor("router/grad/Wq_first_4_rows")) <= 1e-7
        assert far(got["router"].Wq.weight[:4], given.tensor("router/after/Wq_first_4_rows")) <= 1e-6
        assert far(got["router"].experts.weight, given.tensor("router/after/experts")) <= 1e-6


@pytest.mark.parametrize("side", SIDES[1:])
@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_a_step_in_single_precision(shared: Path, kind: str, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native engine selects the same rows, and its numbers are as close as float32 can be."""
    file, name = golden(shared, f"cnf_step_{kind}"), "T1_exp_choice_with_best"
    check(file, name, kind, taken(file, name, kind, side, monkeypatch), (5e-5, 5e-4, 5e-3, 5e-5))


def test_hacs_weights_are_the_published_ones(shared: Path) -> None:
    """Temperature by epoch, weights and weighted loss from given costs and log-probabilities."""
    file = golden(shared, "router_hac_random").below("hac")
    cost, log_prob = file.tensor("cost"), file.tensor("log_prob")
    rolled = Rolled(torch.zeros(*cost.shape, 1, dtype=torch.long), cost)
    loss = ((cost - cost.mean(1, keepdim=True)) * log_prob).mean(1)
    for k, epoch in enumerate(file["epochs_counted_from_1"]):
        heat = temperature(Params(), Clock(0, int(epoch) - 1, 0.0))
        assert heat == file["temperature"][k]
        got = weights(hardness(rolled, log_prob), heat)
        assert far(got, file.tensor("weights")[k]) <= 1e-15
        assert float((got * loss).sum()) == pytest.approx(float(file["loss"][k]), abs=1e-13)


@pytest.mark.parametrize("kind", ["tsp", "cvrp", "atsp"])
def test_the_router_is_the_published_one(shared: Path, kind: str) -> None:
    """Logits, their softmax over rows, and whom TopK of a model and of an instance choose."""
    file = golden(shared, "router_hac_random").below("router")
    xy, cost = file.tensor("xy", torch.float64), file.tensor("R", torch.float64)
    units = file.tensor("demand_units", torch.float64)
    demand = torch.cat([torch.zeros_like(units[:, :1]), units], 1) / CAPACITY
    inst = {
        "tsp": Instances(xy[:, 1:]),
        "cvrp": Instances(xy, demand, torch.full((len(xy),), float(CAPACITY), dtype=torch.float64)),
        "atsp": Instances(matrix=file.tensor("matrix", torch.float64)),
    }[kind]
    with precision(EXACT), torch.no_grad():
        router = fill(Router(inst, 3, width=256 if kind == "atsp" else 128), 61)
        if kind == "atsp":
            name = "embed.flat.weight"
            router.embed["flat"].weight.copy_(0.05 * drawn(name, tuple(router.embed["flat"].weight.shape), 61))
        logits = router(inst, cost)
    given = file.below(kind)
    assert far(logits, given.tensor("logits")) <= 1e-6
    assert far(logits.softmax(0), given.tensor("softmax_over_rows")) <= 1e-7
    zero = torch.zeros(len(cost), dtype=torch.long)
    question = Question(cost, zero, zero, 4, torch.Generator(), logits)
    top = torch.stack(STRATEGIES["m-topk"](question).trained, 1)
    assert torch.equal(top, given.tensor("top4_of_each_model_M_TopK"))
    of = given.tensor("I_TopK_choice")
    for j, rows in enumerate(STRATEGIES["i-topk"](question).trained):
        assert torch.equal(rows, (of == j).nonzero()[:, 0])


def test_random_slices_have_the_published_lengths(shared: Path) -> None:
    """Rows per model of the published random routing, for several pools and numbers of models."""
    file = golden(shared, "router_hac_random").below("random_slices")
    assert len(file) == 6
    for name in file:
        total, m = (int(part[1:]) for part in name.split("_"))
        zero = torch.zeros(total, dtype=torch.long)
        question = Question(torch.zeros(total, m), zero, zero, 1, torch.Generator(), overlapping_slices=True)
        assert [len(rows) for rows in STRATEGIES["random"](question).trained] == file[name].tolist()


def test_scores_gaps_and_the_t_test_are_the_published_ones(shared: Path) -> None:
    """From costs of every model, copy and start to scores, gaps and the paired test."""
    file = golden(shared, "evaluation")
    told = json.loads((shared / "data" / "golden" / "evaluation.json").read_text())
    reference, best = file["reference"], {}
    for name in ("a", "b"):
        cost, want = file[f"cost_{name}"], told[name]
        x8, x1 = cost.min((1, 3)), cost[:, 0].min(2)  # (model, instance)
        best[name] = x8.min(0)
        assert x8.mean(1).tolist() == pytest.approx(want["score_x8_per_model"], abs=1e-12)
        assert x1.mean(1).tolist() == pytest.approx(want["score_x1_per_model"], abs=1e-12)
        for costs, copies in ((x1, "x1"), (x8, "x8")):
            gaps = [float(stats.gaps(row, reference).mean()) for row in costs]
            assert gaps == pytest.approx(want[f"gap_{copies}_per_model"], abs=1e-11)
            together = float(stats.gaps(costs.min(0), reference).mean())
            assert together == pytest.approx(want[f"collaborative_gap_{copies}"], abs=1e-11)
        assert best[name].mean() == pytest.approx(want["collaborative_score_x8"], abs=1e-12)
    test, want = stats.paired_t_test(best["a"], best["b"]), told["t_test"]
    assert (test.t, test.p) == pytest.approx((want["t"], want["p_two_sided"]), abs=1e-9)
    assert test.p / 2 == pytest.approx(want["p_reported_one_sided"], abs=1e-9)  # whatever the sign of t
