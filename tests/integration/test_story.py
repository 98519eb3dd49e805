"""The story's runner: every rival in every table, equal time, nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import story
from benchmarks.story_runs import Cost
from cnf_cli.errors import RecipeError
from cnf_cli.recipe import load_recipe
from cnf_cli.store import Store
from tests.conftest import ROOT

TINY = {
    "problem.n": 5,
    "policy.width": 16,
    "policy.layers": 1,
    "policy.heads": 2,
    "policy.feed_forward": 16,
    "pretrain.instances": 64,
    "pretrain.validation_count": 0,
    "train.validation_count": 0,
    "train.batch_size": 16,
    "attack.count": 20,
    "evaluate.count": 20,
}


def play(problem: str, folder: Path, *more: str, **keys: object) -> dict[str, Any]:
    """The numbers of a story of the smallest size."""
    sets = [f"--set={key}={value}" for key, value in ({**TINY} | keys).items()]
    return story.main(["--problem", problem, "--seeds", "1", "--store", str(folder / "store"), "-q", *sets, *more])


def test_story_has_every_rival_equal_time_and_repeats_for_free(tmp_path: Path) -> None:
    """Each rival stands in each table; time is shared evenly; asked again, nothing runs and the same is printed."""
    asked = ["--rivals", "pretrained,at,cnf", "--budget", "1", "--param", "iterations=50"]
    asked += ["--json", str(tmp_path / "all.json")]
    first = play("cvrp20", tmp_path, *asked, "--markdown", str(tmp_path / "first.md"))
    again = play("cvrp20", tmp_path, *asked, "--markdown", str(tmp_path / "again.md"))
    assert first["made"] > 8
    assert again["made"] == 0
    assert (tmp_path / "first.md").read_bytes() == (tmp_path / "again.md").read_bytes()
    assert json.loads((tmp_path / "all.json").read_text())["plans"] == first["plans"]
    alone = play("cvrp20", tmp_path, *asked, "--only", "time")
    assert (alone["made"], alone["plans"]) == (0, {"time": first["plans"]["time"]})

    instances, time = ({row["rival"]: row for row in first["plans"][plan]} for plan in ("instances", "time"))
    assert instances["at"]["instances"] == instances["cnf"]["instances"] == first["instances"]
    assert time["at"]["instances"] > time["cnf"]["instances"] > 0
    for name in ("at", "cnf"):  # as many steps as the budget of one second has room for, and not one more
        steps, each = time[name]["instances"] // 16, first["steps"][name]["step"]
        assert steps == 1 or steps * each <= 1
        assert (steps + 1) * each > 1
    slowest = min(time, key=lambda name: time[name]["instances"] or 10**9)
    assert time[slowest]["trained"] == instances[slowest]["trained"]

    tables = [part for part in (tmp_path / "first.md").read_text().split("\n\n") if part.startswith("| rival")]
    assert len(tables) == 6
    for table in tables:
        assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| pretrained", "| at", "| cnf"]
    assert set(time["cnf"]["gaps"]) == {"clean", "fixed", "white"}
    assert time["cnf"]["routing"]["covered"] > 0
    assert time["at"]["routing"] is None
    assert not any("train-cnf" in alias for alias in Store(tmp_path / "store").refs())


def test_story_of_matrices_has_heuristics_and_one_model(tmp_path: Path) -> None:
    """The ATSP story attacks with ROCO and has rows for AT with one model and for a heuristic without training."""
    roco = {"attack.attacker": "beam", "attack.calls": 4, "attack.steps": 1, "attack.branch": 1}
    asked = ["--rivals", "pretrained,at1,nearest", "--instances", "16", "--budget", "0"]
    found = play("atsp20", tmp_path, *asked, **{"evaluate.augment": 2, "policy.one_hot_seeds": 5, **roco})
    assert list(found["plans"]) == ["instances"]
    rows = {row["rival"]: row for row in found["plans"]["instances"]}
    assert list(rows) == ["pretrained", "at1", "nearest"]
    assert rows["at1"]["models"] == 1
    assert rows["at1"]["instances"] == 16
    assert set(rows["nearest"]["gaps"]) == {"clean", "fixed"}
    assert rows["nearest"]["gaps"]["clean"]["best"]["mean"] > 0


def test_unknown_rival_is_named(tmp_path: Path) -> None:
    """A rival without a recipe is an error that lists those there are, before anything runs."""
    with pytest.raises(RecipeError, match="'bst'") as caught:
        play("tsp20", tmp_path, "--rivals", "pretrained,bst")
    assert "'best'" in str(caught.value.hint)
    assert not (tmp_path / "store").exists()


def test_steps_fit_the_budget_with_refits() -> None:
    """The most steps within a budget: one more would exceed it, also where an attack is fitted again on the way."""
    recipe = load_recipe(ROOT / "recipes" / "atsp20.toml")
    cost = Cost(step=0.5, fit=10.0)
    for budget in (15.0, 40.0, 333.0):
        steps = cost.steps(recipe, budget)
        assert cost.of(recipe, steps) <= budget < cost.of(recipe, steps + 1)
    assert Cost(1.0).steps(load_recipe(ROOT / "recipes" / "tsp20-story.toml"), 7.5) == 7


def test_a_story_begins_from_the_zoo_in_a_fresh_store(tmp_path: Path) -> None:
    """`--init zoo/NAME` takes the entry into a store that has never seen it."""
    asked = ["--rivals", "pretrained", "--instances", "16", "--budget", "0", "--init", "zoo/tsp20"]
    found = play("tsp20", tmp_path, *asked, **{"problem.n": 6, "evaluate.solver": "descent"})
    assert found["start"] == Store(tmp_path / "store").resolve("zoo/tsp20")
