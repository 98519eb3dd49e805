"""What makes training cheaper, as a recipe asks for it: defaults change nothing, every option resumes exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.errors import MissingDependency, RecipeError
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe.build import Recipe
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import PretrainSection, RuntimeSection
from cnf_cli.solvers.run import solver
from cnf_cli.stages import pretrain
from cnf_cli.store import Manifest, Store
from cnf_cli.training import loop as training
from cnf_cli.training.machine import Setup
from cnf_cli.training.solver_tours import labeller
from cnf_cli.training.stored_policies import make_problem
from tests.conftest import ROOT

RUNTIME = RuntimeSection(engine="torch", threads=1)
STORED = {
    "problem": {"kind": "cvrp", "n": 6},
    "policy": {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16},
    "pretrain": {"instances": 64, "batch_size": 16, "lr": 0.01, "epoch_instances": 64, "validation_count": 0},
}
"""A training whose result was stored before there were such options."""


def recipe(kind: str = "tsp", n: int = 6, **keys: Any) -> Recipe:
    small = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16}
    steps = {"instances": 112, "batch_size": 16, "lr": 0.01, "epoch_instances": 32, "validation_count": 0}
    return finish("c", {"problem": {"kind": kind, "n": n}, "policy": small, "pretrain": {**steps, **keys}}, {})


class CutOff(Exception):
    """The run was cut off."""


class Cutter:
    """Progress bars that end the run after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self, amount: int = 1, **shown: float | str) -> None:
        self.left -= amount == 16
        if self.left < 0:
            raise CutOff

    @contextmanager
    def bar(self, what: str, total: int, unit: str, done: int = 0) -> Iterator[Any]:
        yield self

    def say(self, text: str) -> None:
        pass


def trained(folder: Path, made: Recipe) -> Manifest:
    return Runner(Store(folder), RUNTIME).run(pretrain.task(made))


def metrics(folder: Path, key: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Store(folder).open(key, "metrics.jsonl").read_text().splitlines()]


def test_defaults_keep_their_keys() -> None:
    """Results stored before these keys existed are still found: at their defaults they are not in the key."""
    key = pretrain.task(finish("golden", STORED, {})).key({})
    assert key == "01bdb3fa687204cd995f0fd0539904785f700b58e66ce1aa0cc5ec607a7ee5ac"
    for name in PretrainSection.added:
        assert name in finish("golden", {}, {}).dump()["pretrain"]


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("tsp", {"schedule": "cosine"}),
    ("cvrp", {"schedule": "linear", "warmup": 32}),
    ("tsp", {"early_starts": 2}),
    ("cvrp", {"early_starts": 2, "early_share": 0.25}),
    ("tsp", {"loss": "leader"}),
    ("cvrp", {"loss": "preference"}),
    ("tsp", {"warm_start": 40}),
    ("cvrp", {"warm_start": 40}),
    ("tsp", {"mix": ["uniform", "explosion"]}),
    ("cvrp", {"mix": ["rotation"], "warm_start": 40}),
]


@pytest.mark.parametrize(("kind", "keys"), OPTIONS, ids=[f"{kind}-{'-'.join(keys)}" for kind, keys in OPTIONS])
def test_resume_is_exact(kind: str, keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off and run again, every option ends in the bytes of a straight run, and in others than the default's."""
    if "warm_start" in keys and not solver({"tsp": "elkai", "cvrp": "hgs"}[kind]).available():
        pytest.skip("no solver for labels is installed")  # the extra is optional
    straight = trained(tmp_path / "a", recipe(kind, **keys))
    monkeypatch.setattr(training, "SAVE_EVERY_SECONDS", 0.0)
    for steps in (2, 3):
        with pytest.raises(CutOff):
            Runner(Store(tmp_path / "b"), RUNTIME, Cutter(steps)).run(pretrain.task(recipe(kind, **keys)))
    assert list((tmp_path / "b").glob("work/*/state.safetensors"))
    again = trained(tmp_path / "b", recipe(kind, **keys))
    assert (again.key, again.digest) == (straight.key, straight.digest)
    assert trained(tmp_path / "c", recipe(kind)).digest != straight.digest


def test_rates() -> None:
    """Each schedule begins at the full rate and ends near its floor; the warm-up rises to the full rate."""

    def rates(**keys: Any) -> list[float]:
        section = PretrainSection(instances=1000, batch_size=10, lr=1.0, decay_factor=0.1, decay_last=0.2, **keys)
        return [training.scheduled_rate(section, done) for done in range(0, 1000, 10)]

    last, cosine, linear, warm = rates(), rates(schedule="cosine"), rates(schedule="linear"), rates(warmup=100)
    assert last == [1.0] * 80 + [0.1] * 20
    for falling in (cosine, linear):
        assert falling[0] == 1.0
        assert falling == sorted(falling, reverse=True)
        assert 0.1 < falling[-1] < 0.11
    assert linear[50] == pytest.approx(0.55)
    assert cosine[50] == pytest.approx(0.55)
    assert cosine[25] == pytest.approx(0.1 + 0.9 * (1 + 2**-0.5) / 2)
    assert 0 < warm[0] < 0.02
    assert warm[:11] == sorted(warm[:11])
    assert warm[10:] == last[10:]
    assert rates(warmup=100, schedule="cosine")[10] == 1.0


def test_early_starts_are_drawn_anew_for_every_batch() -> None:
    """The first share of the run has so many different starts, others in every step; then all; instances never move."""
    problem = make_problem(recipe("cvrp").problem)
    setup = Setup(torch.device("cpu"), engine=None)  # type: ignore[arg-type]
    few, every = (recipe("cvrp", **keys).pretrain for keys in ({"early_starts": 3, "early_share": 0.5}, {}))
    drawn = [pretrain.drawn(few, problem, setup, step) for step in range(7)]
    chosen = [batch.starts for batch in drawn]
    assert [starts is None for starts in chosen] == [False] * 4 + [True] * 3
    early = [tuple(starts.tolist()) for starts in chosen if starts is not None]
    assert all(len(set(starts)) == 3 and set(starts) <= set(range(1, 7)) for starts in early)
    assert len(set(early)) > 1
    for step, batch in enumerate(drawn):
        plain = pretrain.drawn(every, problem, setup, step)
        assert torch.equal(plain.seeds, batch.seeds)
        assert batch.inst.xy is not None
        assert torch.equal(plain.inst.xy, batch.inst.xy)  # type: ignore[arg-type]
    assert len(drawn[6].inst) == 16


def test_a_mix_shares_every_batch_out() -> None:
    """Every k-th instance is of the k-th distribution, as that one alone is drawn; a short batch has the first ones."""
    problem = make_problem(recipe("cvrp").problem)
    mix = ("gaussian_mixture", "uniform", "rotation")
    section = recipe("cvrp", mix=list(mix)).pretrain

    def rng() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    batch, alone = training.fresh(problem, section, 8, rng=rng(), n=9), rng()
    assert batch.xy is not None
    assert batch.demand is not None
    assert len({tuple(xy.flatten().tolist()) for xy in batch.xy}) == 8
    for k, dist in enumerate(mix):
        own = problem.sample(len(range(k, 8, 3)), rng=alone, n=9, dist=dist)
        assert torch.equal(batch.xy[k::3], own.xy)  # type: ignore[arg-type]
        assert torch.equal(batch.demand[k::3], own.demand)  # type: ignore[arg-type]
    low, high = (edge(batch.xy[:, 1:], dim=1) for edge in (torch.amin, torch.amax))
    assert [bool(fits) for fits in ((low == 0) & (high == 1)).all(1)] == [k % 3 == 0 for k in range(8)]
    assert len(training.fresh(problem, section, 2, rng=rng())) == 2
    plain = training.fresh(problem, recipe("cvrp").pretrain, 8, rng=rng())
    assert torch.equal(plain.xy, problem.sample(8, rng=rng()).xy)  # type: ignore[arg-type]


def test_labels_cost_what_the_optimum_costs(tmp_path: Path) -> None:
    """While labels are trained on, `cost` is the solver's: no rollout of the same instances is cheaper."""
    if not solver("elkai").available():
        pytest.skip("elkai is not installed")
    warm = metrics(tmp_path, trained(tmp_path, recipe(n=7, warm_start=96)).key)
    cold = metrics(tmp_path, trained(tmp_path, recipe(n=7)).key)
    assert all(a["cost"] <= b["cost"] * (1 + 1e-6) for a, b in zip(warm[:3], cold[:3], strict=True))
    assert warm[0]["loss"] > 0
    assert warm[0]["loss"] > warm[2]["loss"]


def test_labels_need_their_solver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing solver is named with the command that installs it; ATSP has none that is quick, but takes a name."""
    monkeypatch.setattr(type(solver("elkai")), "available", lambda self: None)
    with pytest.raises(MissingDependency) as missing:
        trained(tmp_path, recipe(warm_start=32))
    assert "pip install" in (missing.value.hint or "")
    with pytest.raises(RecipeError, match="atsp") as refused:
        labeller("auto", "atsp")
    assert "label_solver" in (refused.value.hint or "")
    assert labeller("descent", "atsp") == "descent"


def test_added_keys_of_every_base_are_left_out() -> None:
    """A section that inherits from two keeps neither's added keys in its identity, unless they were given."""
    plain = finish("c", {}, {}).train
    assert {"loss", "validation_augment"} <= set(type(plain).model_fields)
    assert not {"loss", "validation_augment"} & set(plain.identity())
    given = finish("c", {"train": {"validation_augment": 8}}, {}).train
    assert given.identity() == {**plain.identity(), "validation_augment": 8}


def test_validation_with_copies_takes_the_best_of_them(tmp_path: Path) -> None:
    """The run itself is the same; what is measured is the best over the copies, as in an evaluation."""
    one, eight = (
        trained(tmp_path, recipe("cvrp", validation_count=20, validation_augment=copies)) for copies in (1, 8)
    )
    weights = [Store(tmp_path).open(made.key, "model.safetensors").read_bytes() for made in (one, eight)]
    assert weights[0] == weights[1]
    for few, many in zip(metrics(tmp_path, one.key), metrics(tmp_path, eight.key), strict=True):
        assert few.pop("validation_cost") > many.pop("validation_cost")
        assert few == many


def test_cpu_time_is_written_down(tmp_path: Path) -> None:
    """Every line of a run's curve has the CPU seconds spent so far."""
    curve = trained(tmp_path, recipe()).provenance["curve"]
    spent = [line["cpu_seconds"] for line in curve]
    assert spent == sorted(spent)
    assert spent[-1] > 0


def test_documentation_lists_every_key() -> None:
    """docs/recipes.md has a line for every key of [pretrain]."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in PretrainSection.model_fields if f"| `{name}` |" not in text] == []
