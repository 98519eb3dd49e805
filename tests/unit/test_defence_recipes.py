"""The recipes that come with the package are valid and say what their names promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnf_cli.recipe import load_recipe
from tests.conftest import ROOT

FILES = sorted((ROOT / "recipes").rglob("*.toml"))
NAMES = [str(path.relative_to(ROOT / "recipes")) for path in FILES]


def test_recipes_exist() -> None:
    """Every experiment of the paper and every CPU-scale one has its file."""
    wanted = {"tsp100", "tsp200", "cvrp100", "cvrp200", "demo", "tsp20", "tsp50", "cvrp20", "cvrp50"}
    assert wanted | {"tsp20-story", "cvrp20-story"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_recipe_is_valid_and_commented(path: Path) -> None:
    """Each file loads without an unknown key, and begins with a comment that says what it is for."""
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(
    ("name", "n", "instances", "batch", "pretrain"),
    [
        ("tsp100", 100, 5_000_000, 64, 300_000_000),
        ("tsp200", 200, 2_500_000, 32, 300_000_000),
        ("cvrp100", 100, 5_000_000, 64, 305_000_000),
        ("cvrp200", 200, 2_500_000, 32, 100_000_000),
    ],
)
def test_paper_scale_values(name: str, n: int, instances: int, batch: int, pretrain: int) -> None:
    """The paper's sizes, at its learning rate, with three models and one attack step."""
    r = load_recipe(ROOT / "recipes" / "paper" / f"{name}.toml")
    assert (r.problem.n, r.train.instances, r.train.batch_size, r.pretrain.instances) == (n, instances, batch, pretrain)
    assert (r.train.models, r.train.lr, r.train.weight_decay, r.attack.steps) == (3, 1e-4, 1e-6, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "ablations").glob("*.toml")), ids=lambda p: p.stem)
def test_ablations_share_the_papers_setting(path: Path) -> None:
    """2.5M instances, decay for the last fifth; two attack steps exactly where components are taken away."""
    r = load_recipe(path)
    assert (r.train.instances, r.train.decay_last) == (2_500_000, 0.2)
    assert r.attack.steps == (2 if "components" in path.stem else 1)  # type: ignore[attr-defined]


def test_story_rivals_share_the_pretrained_policy() -> None:
    """Every recipe of a story pretrains the same policy and sees the same number of clean instances."""
    for problem in ("tsp20", "cvrp20"):
        story = load_recipe(ROOT / "recipes" / f"{problem}-story.toml")
        for path in (ROOT / "recipes" / "story").glob(f"{problem}-*.toml"):
            rival = load_recipe(path)
            names = ("problem", "policy", "pretrain", "attack")
            assert rival.sections(*names) == story.sections(*names)
            assert (rival.train.instances, rival.train.models) == (story.train.instances, story.train.models)
