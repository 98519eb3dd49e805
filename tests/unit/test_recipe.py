"""Recipes: names, defaults, inheritance, overrides, and errors that say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnf_cli import plugins
from cnf_cli.cli.run_stage import Aug
from cnf_cli.errors import RecipeError
from cnf_cli.recipe import load_recipe
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.scan import scan

SMALLEST = """\
[problem]
kind = "tsp"
n = 20
[policy]
kind = "pomo"
[pretrain]
instances = 500_000
batch_size = 64
[attack]
kind = "attribute"
steps = 1
[train]
defence = "cnf"
models = 3
instances = 100_000
batch_size = 64
"""


def write(folder: Path, text: str, name: str = "a.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def error_of(path: Path, *overrides: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return caught.value


def test_smallest_complete_recipe(tmp_path: Path) -> None:
    """The smallest complete recipe validates and keeps its values."""
    recipe = load_recipe(write(tmp_path, SMALLEST))
    assert (recipe.name, recipe.problem.n, recipe.pretrain.instances) == ("a", 20, 500_000)
    assert (recipe.train.models, recipe.train.defence, recipe.attack.kind) == (3, "cnf", "attribute")
    assert set(recipe.dump()) == {
        "problem",
        "policy",
        "pretrain",
        "attack",
        "train",
        "evaluate",
        "visualize",
        "runtime",
    }


def test_misspelt_key_names_file_line_and_suggestion(tmp_path: Path) -> None:
    """An unknown key is an error with file:line and a near miss."""
    path = write(tmp_path, SMALLEST.replace("steps = 1", "step = 1"))
    error = error_of(path)
    assert "attack.step is not a known key" in error.message
    assert error.at == f"{path}:11"
    assert error.hint is not None
    assert "'steps'" in error.hint
    assert "cnf list attacks attribute" in error.hint


def test_misspelt_table_and_kind(tmp_path: Path) -> None:
    """Unknown tables and plugin kinds are reported with what was probably meant."""
    assert "[problem]" in (error_of(write(tmp_path, "[problme]\nn = 5\n")).hint or "")
    error = error_of(write(tmp_path, '[problem]\nkind = "tps"\n'))
    assert "'tsp'" in (error.hint or "")
    assert (error.at or "").endswith(":2")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("lr = nan", "finite"),
        ("lr = -1.0", "greater than 0"),
        ("batch_size = 0", "greater than or equal to 1"),
        ('batch_size = "64"', "valid integer"),
        ("decay_last = 1.5", "less than or equal to 1"),
        ("instances = 1.5", "valid integer"),
        ("sizes = [50, 1]", "greater than or equal to 2"),
        ('mix = ["spiral"]', "'uniform', 'rotation'"),
        ('mix = "uniform"', "should be a list"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, line: str, word: str) -> None:
    """Values out of range, of another type, or not a number are errors at their line."""
    error = error_of(write(tmp_path, f"[pretrain]\n{line}\n"))
    assert word in error.message
    assert (error.at or "").endswith(":2")


def test_overrides_are_toml(tmp_path: Path) -> None:
    """--set parses its value as TOML; a bare word is a string; errors name the override."""
    path = write(tmp_path, SMALLEST)
    assert load_recipe(path, ["train.models=5"]).train.models == 5
    assert load_recipe(path, ["pretrain.sizes=[20, 50]"]).pretrain.sizes == (20, 50)
    assert load_recipe(path, ["problem.kind=cvrp"]).problem.kind == "cvrp"
    assert "--set train.modles=5" in (error_of(path, "train.modles=5").at or "")
    assert "table.key=value" in error_of(path, "models").message
    assert "TOML" in error_of(path, "train.models=[1").message


def test_extends_merges_and_keeps_lines(tmp_path: Path) -> None:
    """A recipe builds on another; an error points at the file that set the key."""
    base = write(tmp_path, SMALLEST, "base.toml")
    child = write(tmp_path, 'extends = "base.toml"\n[train]\nmodels = 5\n', "child.toml")
    recipe = load_recipe(child)
    assert (recipe.train.models, recipe.train.instances, recipe.name) == (5, 100_000, "child")
    base.write_text(SMALLEST.replace("steps", "stpes"))
    assert error_of(child).at == f"{base}:11"


def test_extending_with_another_plugin_drops_its_keys(tmp_path: Path) -> None:
    """Choosing another defence keeps the shared keys and forgets the old defence's own."""
    write(tmp_path, SMALLEST + "top_k = 7\n", "base.toml")
    child = write(tmp_path, 'extends = "base.toml"\n[train]\ndefence = "at"\n', "child.toml")
    train = load_recipe(child).train
    assert (train.defence, train.models) == ("at", 3)
    assert not hasattr(train, "top_k")


def test_extends_refuses_cycles_and_absolute_paths(tmp_path: Path) -> None:
    """A circle, a missing parent, or an absolute path is a clear error."""
    a = write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    write(tmp_path, 'extends = "a.toml"\n', "b.toml")
    assert "circle" in error_of(a).message
    missing = write(tmp_path, 'extends = "nope.toml"\n', "c.toml")
    assert error_of(missing).at == f"{missing}:1"
    assert "relative" in error_of(write(tmp_path, 'extends = "/etc/passwd"\n', "d.toml")).message


def test_toml_syntax_error_has_a_line(tmp_path: Path) -> None:
    """What is not TOML is reported with its line."""
    path = write(tmp_path, "[problem]\nn = = 3\n")
    assert error_of(path).at == f"{path}:2"


def test_scan_sees_through_multiline_values() -> None:
    """The scanner finds keys after arrays, strings and inline tables that span lines or hold brackets."""
    text = 'a = """\nb = 1\n"""\n[t]\nc = [\n  1, # ]\n  2,\n]\nd = { x = 1 }\ne."f" = "[#]"\n[t.u]\ng = 1\n'
    assert dict(scan(text)) == {"a": 1, "t": 4, "t.c": 5, "t.d": 9, "t.e.f": 10, "t.u": 11, "t.u.g": 12}


@pytest.mark.parametrize(("kind", "most", "usual"), [("tsp", 8, 8), ("cvrp", 8, 8), ("atsp", 128, 16)])
def test_copies_are_a_range_of_the_problem(kind: str, most: int, usual: int) -> None:
    """Each problem has its own default and its own most copies, which every key about copies is held to."""
    tables: dict[str, Any] = {"problem": {"kind": kind}}
    assert finish("a", dict(tables), {}).evaluate.augment == usual
    assert finish("a", dict(tables), {}, [f"evaluate.augment={most}"]).evaluate.augment == most
    for key in ("evaluate.augment", "pretrain.validation_augment", "train.validation_augment"):
        with pytest.raises(RecipeError) as caught:
            finish("a", dict(tables), {}, [f"{key}={most + 1}"])
        assert caught.value.at == f"--set {key}={most + 1}"
        if most < 128:  # no problem has more: the section itself says so
            assert f"{kind} has 1 to {most} copies of an instance, not {most + 1}" in caught.value.message
            assert caught.value.hint == f"its default is {usual}"


def test_the_help_of_aug_says_every_problems_range() -> None:
    """What `--help` says of --aug is what the problems declare."""
    told = Aug.__metadata__[0].help
    for kind in plugins.kinds("problems"):
        about: Any = plugins.params("problems", kind)
        own = f"{kind} " if (about.copies, about.usual_copies) != (range(1, 9), 8) else ""
        for text in (f"1 to {about.copies[-1]}", str(about.usual_copies)):
            assert f"{own}{text}" in told, kind
