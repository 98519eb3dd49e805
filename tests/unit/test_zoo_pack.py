"""Publishing in the zoo: weights and cards made from an artifact and its provenance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cnf_cli.errors import CheckFailed, RecipeError
from cnf_cli.formats import checkpoint
from cnf_cli.pipeline import provenance
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe import load_recipe
from cnf_cli.stages import pretrain, train_cnf, zoo, zoo_pack
from cnf_cli.store import Manifest, Store
from cnf_cli.zoo import cards

RECIPE = """# tiny
[problem]
kind = "tsp"
n = 6
[policy]
width = 16
layers = 1
heads = 2
feed_forward = 16
[pretrain]
instances = 32
batch_size = 16
epoch_instances = 16
validation_count = 0
[attack]
count = 4
[train]
models = 2
instances = 32
batch_size = 16
epoch_instances = 16
validation_count = 0
"""


@pytest.fixture(scope="module", autouse=True)
def clean_tree() -> Iterator[None]:
    """Whatever these tests train was made by a commit, not by the tree in which they happen to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "git_commit", lambda: "0123456789ab")
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path, Manifest, Manifest]:
    """A store with a tiny policy and a tiny ensemble, and their recipe."""
    folder = tmp_path_factory.mktemp("pack")
    (folder / "tiny.toml").write_text(RECIPE)
    recipe = load_recipe(folder / "tiny.toml")
    store = Store(folder / "store")
    command = ("cnf", "pretrain", str(folder / "tiny.toml"), "--store", str(folder / "store"))
    runner = Runner(store, command=command)
    first = runner.run(pretrain.task(recipe))
    return store, folder / "tiny.toml", first, runner.run(train_cnf.task(recipe, first))


def order(name: str, into: Path, recipe: Path, half: bool = False) -> zoo_pack.Order:
    return zoo_pack.Order(name, into, str(recipe), half=half)


@pytest.mark.parametrize("half", [False, True])
def test_packed_entry_is_the_artifact(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    """What comes out of the zoo has the artifact's weights: exactly, or rounded to float16; the card has its facts."""
    store, recipe, first, _ = made
    one = zoo_pack.pack(store, first, order("tiny6", tmp_path / "zoo", recipe, half))
    monkeypatch.setenv("CNF_ZOO", str(tmp_path / "zoo"))
    assert cards.card("tiny6") == one
    run = one.training[0]
    assert (run.artifact, run.instances, run.seed, run.core_hours_are) == (first.key, 32, 1234, "measured")
    assert run.command == "cnf pretrain tiny.toml"
    assert [line["instances"] for line in run.curve] == [16, 32]
    taken = zoo.take(Store(tmp_path / "other"), "tiny6")
    before, meta = checkpoint.load(store.open(first.key, "model.safetensors"))
    after, meta_after = checkpoint.load(Store(tmp_path / "other").open(taken.key, "model.safetensors"))
    assert meta == meta_after
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor.half().float() if half else tensor)
    if not half:
        assert taken.outputs["model.safetensors"] == first.outputs["model.safetensors"]


def test_packed_ensemble_tells_both_runs(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ensemble has a file per model and its card tells of the policy it began as; packing again replaces."""
    store, recipe, first, several = made
    place = tmp_path / "zoo"
    zoo_pack.pack(store, first, order("tiny6", place, recipe))
    for _ in range(2):
        one = zoo_pack.pack(store, several, order("tiny6-cnf", place, recipe, half=True))
    monkeypatch.setenv("CNF_ZOO", str(place))
    assert [run.stage for run in one.training] == ["train_cnf", "pretrain"]
    assert sorted(p.name for p in place.glob("*.safetensors")) == [
        "tiny6-cnf-0.safetensors",
        "tiny6-cnf-1.safetensors",
        "tiny6.safetensors",
    ]
    assert (cards.fitting("tsp", 9), cards.fitting("tsp", 9, ensemble=True)) == ("tiny6", "tiny6-cnf")
    assert cards.fitting("cvrp", 9) is None
    taken = zoo.take(Store(tmp_path / "other"), "tiny6-cnf")
    assert sorted(taken.outputs) == ["model-0.safetensors", "model-1.safetensors"]
    assert taken.checks["models"] == 2


def test_first_run_is_told_by_the_recipe_that_makes_it_now(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path
) -> None:
    """A second run may take over the first one's recipe name: the card names the file that has the first's keys now."""
    store, _, first, _ = made
    (tmp_path / "tiny.toml").write_text(RECIPE.replace("instances = 32", "instances = 48"))
    second = Runner(store).run(pretrain.task(load_recipe(tmp_path / "tiny.toml"), init=first))
    with pytest.raises(RecipeError, match=f"no recipe in .* made artifact {first.key[:12]}"):
        zoo_pack.pack(store, second, order("tiny6", tmp_path / "zoo", tmp_path / "tiny.toml"))
    start = tmp_path / "tiny-start.toml"
    start.write_text(RECIPE)
    one = zoo_pack.pack(store, second, order("tiny6", tmp_path / "zoo", tmp_path / "tiny.toml"))
    assert [run.instances for run in one.training] == [48, 32]
    assert one.training[1].recipe == start.as_posix()
    assert one.training[1].command == f"cnf pretrain {start.as_posix()}"


@pytest.mark.parametrize("commit", [None, "0123456789ab-dirty"])
def test_packing_refuses_what_no_commit_made(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, commit: str | None
) -> None:
    """An artifact that no commit made, or that started from such a one, is refused, and nothing is written."""
    store, recipe, first, _ = made
    unknown = replace(first, provenance={**first.provenance, "git": commit})
    with pytest.raises(CheckFailed, match="nothing of its commit" if commit is None else "a tree with other changes"):
        zoo_pack.pack(store, unknown, order("tiny6", tmp_path / "zoo", recipe))
    assert not (tmp_path / "zoo").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "git_commit", lambda: commit)
        odd = Runner(Store(tmp_path / "odd")).run(pretrain.task(load_recipe(recipe)))
    later = Runner(Store(tmp_path / "odd")).run(train_cnf.task(load_recipe(recipe), odd))
    with pytest.raises(CheckFailed, match=odd.key[:12]):
        zoo_pack.pack(Store(tmp_path / "odd"), later, order("tiny6-cnf", tmp_path / "zoo", recipe))


@pytest.mark.parametrize(
    ("train", "line"),
    [
        (
            {"defence": "cnf"},
            "3 x POMO for TSP20, hardened by the defence cnf, routing topk-with-best (by the router), with",
        ),
        ({"defence": "cnf", "mode": "paper"}, "routing m-topk (by the router)"),
        ({"defence": "cnf", "routing": "best"}, "routing best (no router: each instance trains the model that solves"),
        ({"defence": "cnf", "router": False}, "routing random (no router: random shares)"),
        ({"defence": "at", "loss": "leader"}, "hardened by the defence at, with the loss leader"),
        ({"defence": "trs"}, "hardened by the defence trs, with the loss reinforce"),
    ],
)
def test_the_first_line_names_routing_and_loss(train: dict[str, Any], line: str) -> None:
    """A card says in its first line who handed out the instances, a router or not, and what was descended."""
    told = zoo_pack.about({"kind": "tsp", "n": 20}, {"kind": "pomo"}, 3, {"train": train})
    assert line in told


@pytest.mark.parametrize("name", [one.name for one in cards.cards()])
def test_the_cards_in_the_package_name_routing_and_loss(name: str) -> None:
    """Each card's first line is what its own training sections say."""
    one = cards.card(name)
    models = len(one.weights.files)
    assert one.about == zoo_pack.about(one.problem, one.policy, models, one.training[0].sections)
    assert "loss" in one.about
    assert (models == 1) != ("routing" in one.about)


def test_a_card_tells_what_was_mixed(made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path) -> None:
    """How many instances a run saw, and of which distributions where there were several, which made it another run."""
    store, recipe, first, unmixed = made
    plain = zoo_pack.pack(store, first, order("tiny6", tmp_path / "zoo", recipe))
    assert plain.training[0].seen == "32 instances"
    (tmp_path / "mixed.toml").write_text(RECIPE.replace("[train]", '[train]\nmix = ["uniform", "rotation"]'))
    mixed = load_recipe(tmp_path / "mixed.toml")
    several = Runner(store).run(train_cnf.task(mixed, first))
    assert several.digest != unmixed.digest
    (tmp_path / "tiny.toml").write_text(RECIPE)
    one = zoo_pack.pack(store, several, order("tiny6-cnf", tmp_path / "zoo", tmp_path / "mixed.toml"))
    assert [run.seen for run in one.training] == ["32 instances (equal shares of uniform, rotation)", "32 instances"]


def test_an_entry_that_went_on_from_itself_can_be_packed_again(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second version starts from the first one's weights in the zoo; its card tells two runs, packed again too."""
    store, _, first, _ = made
    start, now, place = tmp_path / "tiny-start.toml", tmp_path / "tiny.toml", tmp_path / "zoo"
    start.write_text(RECIPE)
    now.write_text(RECIPE.replace("instances = 32", "instances = 64"))
    zoo_pack.pack(store, first, order("tiny6", place, start))
    monkeypatch.setenv("CNF_ZOO", str(place))
    second = Runner(store).run(pretrain.task(load_recipe(now), init=zoo.take(store, "tiny6")))
    for _ in range(2):
        one = zoo_pack.pack(store, second, order("tiny6", place, now))
        assert [(run.instances, run.recipe) for run in one.training] == [(64, str(now)), (32, str(start))]


@pytest.mark.parametrize(("before", "refused"), [(0.2504, False), (0.24951, False), (0.2494, True)])
def test_rounding_may_not_change_a_gap_in_its_third_digit(
    made: tuple[Store, Path, Manifest, Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: float,
    refused: bool,
) -> None:
    """Every set is measured with the exact weights too; 0.250% after rounding must have been 0.250% before."""
    from cnf_cli.cli import zoo_measure
    from cnf_cli.cli.context import Context

    store, recipe, first, _ = made
    asked: list[str] = []

    def fake(ctx: Context, line: str, *, optional: bool = False) -> dict[str, Any]:
        asked.append(line)
        row = {"model": None, "count": 8, "augment": 8, "cost": 1.0, "gap_ci95": [0.2, 0.3], "reference": "some"}
        return {"rows": [{**row, "gap_percent": before if "exact" in line else 0.2501}]}

    monkeypatch.setenv("CNF_ZOO", str(tmp_path))
    monkeypatch.setattr(zoo_measure, "_call", fake)
    zoo_pack.pack(store, first, order("tiny6", tmp_path, recipe, half=True))
    ctx = Context(quiet=True, store_path=store.root)
    if refused:
        with pytest.raises(CheckFailed, match=r"uniform x8 0\.249% -> 0\.250%"):
            zoo_measure.measured(ctx, "tiny6", tmp_path, None, exact="exact")
    else:
        found = zoo_measure.measured(ctx, "tiny6", tmp_path, None, exact="exact")
        assert any("Rounding to float16 changed none" in note for note in found.notes)
    assert sum("--with exact" in line for line in asked) == sum("--with zoo/tiny6 --aug" in line for line in asked) == 6


def test_nearest_size_by_ratio_and_bound(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest n counts by ratio, and a network with a largest size is not asked for more."""
    store, recipe, first, _ = made
    zoo_pack.pack(store, first, order("tiny6", tmp_path, recipe))
    card = json.loads((tmp_path / "tiny6.json").read_text())
    for name, n, policy in (("tiny20", 20, card["policy"]), ("tiny8", 8, {"kind": "matnet", "one_hot_seeds": 8})):
        other = {**card, "name": name, "problem": {**card["problem"], "n": n}, "policy": policy}
        (tmp_path / f"{name}.json").write_text(json.dumps(other))
    monkeypatch.setenv("CNF_ZOO", str(tmp_path))
    assert [cards.fitting("tsp", n) for n in (3, 8, 9, 12, 500)] == ["tiny6", "tiny8", "tiny6", "tiny20", "tiny20"]


def test_another_recipe_and_too_many_bytes_are_refused(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card cannot name a recipe that did not make it, and the zoo cannot outgrow its limit; nothing is written."""
    store, recipe, first, _ = made
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("instances = 32", "instances = 48"))
    with pytest.raises(RecipeError, match=r"pretrain\.instances is 48"):
        zoo_pack.pack(store, first, order("tiny6", tmp_path / "zoo", other))
    # A key that is no part of a result's identity at its default differs all the same where it is set.
    other.write_text(RECIPE.replace("instances = 32", 'instances = 32\nmix = ["rotation"]', 1))
    with pytest.raises(RecipeError, match=r"pretrain\.mix is \['rotation'\], the artifact has none"):
        zoo_pack.pack(store, first, order("tiny6", tmp_path / "zoo", other))
    monkeypatch.setattr(zoo_pack, "MAX_BYTES", 1000)
    with pytest.raises(CheckFailed, match="more than 1,000"):
        zoo_pack.pack(store, first, order("tiny6", tmp_path / "zoo", recipe))
    assert not (tmp_path / "zoo").exists()


def test_commands_lose_what_belongs_to_one_machine() -> None:
    """Stores and folders are left out of a card's commands; settings stay."""
    words = ["cnf", "pretrain", "/x/y/recipes/zoo/a.toml", "--store", "/x/s", "--store=/x", "--set", "problem.n=3"]
    assert zoo_pack.told([*words, "--validate=/d/v", "~/b.toml"]) == (
        "cnf pretrain recipes/zoo/a.toml --set problem.n=3 --validate=v b.toml"
    )


@pytest.mark.slow
def test_measuring_fills_the_card(
    made: tuple[Store, Path, Manifest, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every set of the card is measured by the commands it lists; the ensemble on the set made against the policy."""
    from cnf_cli.cli import zoo_measure
    from cnf_cli.cli.context import Context

    def here(ctx: Context, line: str, *, optional: bool = False) -> dict[str, Any]:
        """The command in this process: twenty fresh ones would take minutes."""
        from cnf_cli.cli.app import app

        done = CliRunner().invoke(app, [*line.split(), "--json", "--store", str(ctx.store.root)])
        assert done.exception is None or optional, (line, done.exception)
        return {"error": str(done.exception)} if done.exception else dict(json.loads(done.stdout))

    store, recipe, first, several = made
    monkeypatch.setenv("CNF_ZOO", str(tmp_path))
    monkeypatch.setattr(zoo_measure, "_call", here)
    ctx = Context(quiet=True, store_path=store.root)
    zoo_pack.pack(store, first, order("tiny6", tmp_path, recipe))
    zoo_pack.pack(store, several, order("tiny6-cnf", tmp_path, recipe))
    one, both = (zoo_measure.measured(ctx, name, tmp_path, None, count=8) for name in ("tiny6", "tiny6-cnf"))
    for card in (one, both):
        sets = [g.set.split()[0] for g in card.gaps]
        assert sets == [s for s in ("uniform", "rotation", "explosion", "adversarial", "50") for _ in range(2)]
        assert card.notes == ("No public instance has a fitting size: tsplib (3 to 12 nodes).",)
    assert {g.set for g in both.gaps} == {g.set for g in one.gaps}
