"""The policies that come with the package: what they are, that they are what they say, and that they are used."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cnf_cli.errors import ArtifactError, CnfError
from cnf_cli.evaluation import policy_choice as choice
from cnf_cli.recipe import load_recipe
from cnf_cli.stages import zoo
from cnf_cli.stages.zoo_pack import fixed_costs
from cnf_cli.store import Store
from cnf_cli.zoo import cards, pages, place
from tests.conftest import ROOT

NAMES = place.names()
BARS = {"tsp20": 0.03, "tsp50": 0.5, "tsp100": 2.5, "cvrp20": 0.6, "cvrp50": 3.0, "atsp20": 1.0}  # percent
PLANNED = {"tsp20", "tsp50", "tsp100", "cvrp20", "cvrp50", "atsp20", "tsp20-cnf", "tsp50-cnf", "cvrp20-cnf"}
# Others go on from these.
EARLIER_RUNS = {f"{name}-start" for name in ("tsp20", "tsp100", "cvrp20", "cvrp50", "atsp20")} | {"tsp100-second"}


def cnf(*args: str, store: Path) -> Result:
    """One call of `cnf` in this process, as `main` would do it."""
    from cnf_cli.cli.app import app

    return CliRunner().invoke(app, [*args, "--store", str(store)])


def told(*args: str, store: Path) -> dict[str, Any]:
    done = cnf(*args, "--json", store=store)
    if done.exception is not None:
        raise done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def stops(tmp_path: Path) -> Path:
    """A CSV file of 60 random points."""
    rng = random.Random(7)
    file = tmp_path / "stops.csv"
    file.write_text("x,y\n" + "\n".join(f"{rng.uniform(0, 90)!r},{rng.uniform(0, 90)!r}" for _ in range(60)))
    return file


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the zoo that a test may spoil."""
    folder = tmp_path / "zoo-copy"
    folder.mkdir()
    for name in ("tsp20.json", "tsp20.safetensors"):
        shutil.copy(place.HERE / name, folder / name)
    monkeypatch.setenv("CNF_ZOO", str(folder))
    return folder


# ---- what is shipped


@pytest.mark.parametrize("name", NAMES)
def test_card_names_the_recipe_that_made_it(name: str) -> None:
    """Every training run behind an entry has the sections of the recipe it names, key by key."""
    one = cards.card(name)
    assert one.training[0].recipe == f"recipes/zoo/{name}.toml"
    for run in one.training:
        said = load_recipe(ROOT / run.recipe).sections(*run.sections)
        assert {table: section.identity() for table, section in said.items()} == run.sections
        assert run.instances > 0
        assert run.core_hours > 0


@pytest.mark.parametrize("name", NAMES)
def test_card_holds_every_measurement_with_its_command(name: str) -> None:
    """Clean, shifted and adversarial sets of 1000, with and without copies, each with its interval and command."""
    one = cards.card(name)
    dists = ["uniform"] if one.kind == "atsp" else ["uniform", "rotation", "explosion"]
    for prefix in [*dists, "adversarial"]:
        rows = [g for g in one.gaps if g.set.startswith(prefix)]
        assert sorted(g.augment for g in rows) == [1, 16 if one.kind == "atsp" else 8]
        for g in rows:
            assert g.instances == 1000
            assert g.gap_ci95[0] <= g.gap_percent <= g.gap_ci95[1]
            assert f"--with {one.alias}" in g.command
    public = [g for g in one.gaps if "lib (" in g.set]
    assert public or any("No public instance" in note for note in one.notes)


@pytest.mark.parametrize(("name", "most"), BARS.items())
def test_policy_is_as_good_as_promised(name: str, most: float) -> None:
    """The mean gap on 1000 clean instances, at the most copies, is within the bar."""
    found = cards.card(name).gap("uniform")
    assert found is not None
    assert found.gap_percent <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "instances", "solutions", "copies"),
    [
        ("tsp50", "tsp50_uniform.pkl", "concorde_tsp50_uniform.pkl", 8),
        ("cvrp50", "cvrp50_uniform.pkl", "hgs_cvrp50_uniform.pkl", 8),
        ("atsp20", "atsp20_clean", "lkh_atsp20.pkl", 16),
    ],
)
def test_policy_is_as_good_on_public_instances(
    shared: Path, tmp_path: Path, name: str, instances: str, solutions: str, copies: int
) -> None:
    """The mean gap on the published 1000 instances, against the published solver's costs, is within the bar."""
    sets = shared / "data" / "sets"
    cnf("import", str(sets / instances), "--solutions", str(sets / solutions), "--as", "set", store=tmp_path)
    found = told("evaluate", "--data", "set", "--with", f"zoo/{name}", "--aug", str(copies), store=tmp_path)
    (row,) = [row for row in found["rows"] if row["augment"] == copies]
    assert row["count"] == 1000
    assert row["gap_percent"] <= BARS[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-cnf")])
def test_hardened_ensemble_beats_its_policy(name: str) -> None:
    """At most half its policy's gap on the fixed adversarial set, and not worse on clean instances."""
    rows = [{g.set: g for g in cards.card(one).gaps if g.augment > 1} for one in (name, name.removesuffix("-cnf"))]
    hard = next(set_ for set_ in rows[0] if set_.startswith("adversarial"))
    assert 2 * rows[0][hard].gap_percent <= rows[1][hard].gap_percent
    assert rows[0]["uniform"].gap_percent <= rows[1]["uniform"].gap_ci95[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tsp20", "tsp50", "cvrp20"])
def test_hardened_ensemble_beats_its_policy_on_fresh_instances(name: str, tmp_path: Path) -> None:
    """Still at most half the gap on adversarial instances whose seed stands in no card and chose no setting."""
    problem, n = name[:-2], name[-2:]
    made = ("--seed", "24680", "--count", "1000", "--dist", "uniform", "--as", "clean")
    cnf("data", "generate", problem, "--n", n, *made, store=tmp_path)
    cnf("attack", str(ROOT / f"recipes/zoo/{name}.toml"), "--with", f"zoo/{name}", "--data", "clean",
        "--count", "1000", "--as", "hard", store=tmp_path)  # fmt: skip
    if problem == "cvrp":
        cnf("label", "hard", "--solver", "hgs", "--param", "iterations=400", "--as", "hard", store=tmp_path)
    both = ("--with", f"zoo/{name}", "--with", f"zoo/{name}-cnf")
    rows = told("evaluate", "--data", "hard", *both, "--aug", "8", store=tmp_path)["rows"]
    whole = [row for row in rows if row["augment"] == 8 and row["model"] is None]  # not one model alone
    gap = {row["method"]: row["gap_percent"] for row in whole}
    assert [row["count"] for row in rows] == [1000] * len(rows)
    assert 2 * gap[f"zoo/{name}-cnf"] <= gap[f"zoo/{name}"]


@pytest.mark.parametrize("name", NAMES)
def test_card_has_no_path_of_a_machine(name: str) -> None:
    """Nothing in a card points into somebody's file system."""
    text = (place.HERE / f"{name}.json").read_text(encoding="utf-8")
    assert not [word for word in ("/tmp", "/home", "/root", "/work", "/Users", "--store", ":\\\\") if word in text]


@pytest.mark.parametrize("name", NAMES)
def test_weights_cost_what_the_card_says(name: str) -> None:
    """The shipped bytes have the card's digests and solve its fixed instances at the card's costs."""
    one = cards.card(name)
    found = list(fixed_costs(cards.weight_files(one), one.fixed.augment))
    assert found == pytest.approx(list(one.fixed.costs), rel=1e-4)


def test_zoo_is_small_and_every_file_belongs_to_a_card() -> None:
    """Under 30 MB in all; no weights without a card; no name outside the plan."""
    files = {path.name: path.stat().st_size for path in place.HERE.glob("*.safetensors")}
    assert 0 < sum(files.values()) < cards.MAX_BYTES == 30_000_000
    assert {one.file for card in cards.cards() for one in card.weights.files} == set(files)
    assert set(NAMES) <= PLANNED
    assert {p.stem for p in (ROOT / "recipes" / "zoo").glob("*.toml")} == PLANNED | EARLIER_RUNS


def test_wheel_holds_cards_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A built wheel contains every card and every weight file."""
    build = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    wheel = build.build_wheel(str(tmp_path), {"wheel.cmake": "false"})
    inside = set(zipfile.ZipFile(tmp_path / wheel).namelist())
    shipped = [p.name for p in place.HERE.iterdir() if p.suffix in (".json", ".safetensors")]
    assert {f"cnf_cli/zoo/{name}" for name in shipped} <= inside


def test_page_is_what_the_cards_say() -> None:
    """docs/zoo.md is up to date; `cnf zoo docs` makes it so."""
    page = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    assert pages.fresh(page, cards.cards()) == page


@pytest.mark.parametrize("name", NAMES)
def test_progress_is_in_order_and_in_core_minutes(name: str) -> None:
    """Instances and time rise to what the card says in all; a run that recorded the clock alone counts its cores."""
    run = cards.card(name).training[0]
    points = run.progress()
    assert len(points) == sum("gap_percent" in line or "clean_gap_percent" in line for line in run.curve)
    assert points == sorted(points, key=lambda point: point[0])
    if points:
        assert points[-1][0] == run.instances
        least = 0.95 if run.copies == 1 else 0.9  # validation counts in the card's hours alone, and copies cost more
        assert least <= points[-1][1] / (60 * run.core_hours) <= 1.001
    whole = cards.card(name).progress()
    assert whole[len(whole) - len(points) :] == [
        (pytest.approx(n + whole[-1][0] - points[-1][0]), pytest.approx(m + whole[-1][1] - points[-1][1]), gap)
        for n, m, gap in points
    ]
    assert whole == sorted(whole)
    loose = run.model_copy(update={"curve": ({"instances": 7, "seconds": run.seconds / 2, "gap_percent": 1.5},)})
    assert loose.progress() == [(7, pytest.approx(30 * run.core_hours), 1.5)]


# ---- looking and naming


def test_ls_and_show(tmp_path: Path) -> None:
    """`zoo ls` has a row per entry with its gaps; `zoo show` prints training and measuring commands, in JSON all."""
    rows = {row["name"]: row for row in told("zoo", "ls", store=tmp_path)["zoo"]}
    assert set(rows) == {f"zoo/{name}" for name in NAMES}
    assert rows["zoo/tsp20"]["clean_gap_percent"] < 0.2 < rows["zoo/tsp20"]["adversarial_gap_percent"]
    shown = cnf("zoo", "show", "zoo/tsp20", store=tmp_path)
    assert "cnf pretrain recipes/" in shown.stdout
    assert "cnf evaluate --data" in shown.stdout
    assert told("zoo", "show", "tsp20", store=tmp_path)["weights"]["digest"] == cards.card("tsp20").weights.digest
    assert not (tmp_path / "format").exists()


def test_wrong_name_lists_near_ones(tmp_path: Path, stops: Path) -> None:
    """A misspelt entry is an error with the near names, wherever it is used; a store's own alias still works."""
    for args in (("zoo", "show", "tsp2"), ("solve", str(stops), "--with", "zoo/tsp2"), ("show", "zoo/tps20")):
        done = cnf(*args, store=tmp_path / "s")
        assert isinstance(done.exception, ArtifactError)
        assert "zoo/tsp20" in str(done.exception.hint)
    told("selftest", store=tmp_path / "s")
    told("tag", "zoo/mine", "selftest/sum", store=tmp_path / "s")
    assert told("show", "zoo/mine", store=tmp_path / "s")["stage"] == "selftest_sum"
    taken = cnf("tag", "zoo/tsp20", "selftest/sum", store=tmp_path / "s")
    assert isinstance(taken.exception, CnfError)


def test_completion_knows_the_zoo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names complete with and without the prefix, also where there is no store."""
    from cnf_cli.cli import complete

    monkeypatch.setenv("CNF_STORE", str(tmp_path / "none"))
    assert "zoo/tsp20" in complete.aliases("zo")
    assert "tsp20" in complete.zoo("tsp")
    assert "zoo/tsp20" in complete.zoo("zoo/t")


# ---- damage


def test_changed_byte_is_refused(copied: Path, tmp_path: Path, stops: Path) -> None:
    """Weights that are not what the card says are never loaded: another byte, another length, or no file."""
    file = copied / "tsp20.safetensors"
    sound = file.read_bytes()
    changed = bytearray(sound)
    changed[-5] ^= 1
    for spoilt in (bytes(changed), sound[:-2], None):
        file.unlink()
        if spoilt is not None:
            file.write_bytes(spoilt)
        else:
            file = copied / "absent"
        done = cnf("solve", str(stops), "--with", "zoo/tsp20", store=tmp_path / "s")
        assert isinstance(done.exception, ArtifactError)
        assert "weights of zoo/tsp20" in done.exception.message
        assert not (tmp_path / "s" / "format").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("name", "tsp50"), ("weights", {}), ("extra", 1), ("format", 2), ("training", [])]
)
def test_card_of_another_shape_is_refused(copied: Path, key: str, value: Any) -> None:
    """Unknown, missing and contradicting fields of a card are errors that name it."""
    card = json.loads((copied / "tsp20.json").read_text())
    (copied / "tsp20.json").write_text(json.dumps({**card, key: value}))
    with pytest.raises(ArtifactError, match="card of zoo/tsp20"):
        cards.card("tsp20")


def test_weight_file_outside_the_folder_is_refused(copied: Path) -> None:
    """A card cannot point to a file elsewhere."""
    card = json.loads((copied / "tsp20.json").read_text())
    card["weights"]["files"][0]["file"] = "../tsp20.safetensors"
    (copied / "tsp20.json").write_text(json.dumps(card))
    with pytest.raises(ArtifactError, match="card of zoo/tsp20"):
        cards.card("tsp20")


def test_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: Path) -> None:
    """Where the entry cannot be taken into the store the error says so, and what to do."""
    from cnf_cli.store import disk

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "s"))

    monkeypatch.setattr(disk, "fan_out", refuse)
    done = cnf("solve", str(stops), store=tmp_path / "s")
    assert isinstance(done.exception, ArtifactError)
    assert "taken into the store" in done.exception.message
    assert "--store" in str(done.exception.hint)


# ---- use


def test_same_artifact_everywhere(tmp_path: Path) -> None:
    """An entry has one id and one content in every store, and asking again changes nothing."""
    first, second = (zoo.take(Store(tmp_path / name), "tsp20") for name in "ab")
    assert (first.key, first.digest) == (second.key, second.digest)
    assert zoo.take(Store(tmp_path / "a"), "zoo/tsp20").key == first.key == zoo.task("tsp20").key({})
    assert Store(tmp_path / "a").refs() == {"zoo/tsp20": first.key}
    assert first.provenance["trained"]["artifact"] == cards.card("tsp20").training[0].artifact


def test_solve_with_nothing_but_the_package(tmp_path: Path, stops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 points, an empty folder, an empty environment: a tour, and one line that says whose it is."""
    for name in ("CNF_STORE", "CNF_ZOO", "CNF_BENCH_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it is in the store, and still not the user's own
        done = cnf("solve", str(stops), "--json", store=tmp_path / "s")
        assert done.exit_code == 0, done.exception
        found = json.loads(done.stdout)
        (row,) = found["rows"]
        assert row["policy"] == f"zoo/{cards.fitting('tsp', 60)}"
        assert 400 < row["cost"] < 800
        assert row["policy"] in found["notes"][0]
        assert done.stderr.count("from the package") == 1


def test_with_zoo_where_an_id_works(tmp_path: Path, stops: Path) -> None:
    """solve, attack and evaluate take zoo/NAME; what they make has the entry among its inputs."""
    store = tmp_path / "s"
    assert told("solve", str(stops), "--with", "zoo/tsp20", store=store)["rows"][0]["policy"] == "zoo/tsp20"
    made = told("attack", "tsp", "--n", "12", "--with", "zoo/tsp20", "--count", "3", "--as", "hard", store=store)
    inputs = told("show", made["id"], store=store)["lineage"]["inputs"]
    assert inputs["policy"]["id"] == zoo.task("tsp20").key({})
    args = ("evaluate", "--data", "hard", "--with", "zoo/tsp20", "--reference", "descent", "--aug", "2")
    assert {row["method"] for row in told(*args, store=store)["rows"]} == {"zoo/tsp20"}


def test_evaluate_bench_takes_the_zoos_policy_beside_heuristics(tmp_path: Path) -> None:
    """With an empty store a benchmark has rows for the zoo's policy and the built-in heuristics, and says so."""
    found = told("evaluate", "--bench", "tsplib:ulysses*", "--aug", "2", store=tmp_path)
    assert list(dict.fromkeys(row["method"] for row in found["rows"])) == ["zoo/tsp20", "nearest", "descent"]
    assert "zoo/tsp20" in found["notes"][0]


def test_when_a_recipe_starts_from_the_zoo(tmp_path: Path) -> None:
    """A recipe that says how to pretrain does so; one that does not takes the zoo's, until its own is in the store."""
    from cnf_cli.cli.run_stage import recipe_for
    from cnf_cli.pipeline.runner import Runner
    from cnf_cli.stages import pretrain

    store = Store(tmp_path / "s")
    small = ["policy.width=16", "policy.layers=1", "policy.heads=2", "policy.feed_forward=16"]
    bare = recipe_for("tsp", 12, [])
    started = choice.start_of(bare, store)
    assert started is not None
    assert started.policy == "tsp20"
    assert choice.start_of(recipe_for("tsp", 12, ["pretrain.instances=64"]), store) is None
    assert choice.start_of(recipe_for("tsp", 12, small), store) is None
    assert choice.start_of(load_recipe(ROOT / "recipes" / "tsp20.toml"), store) is None
    steps = told("train-cnf", "tsp", "--n", "12", "--plan", store=tmp_path / "s")
    assert [step["stage"] for step in steps["plan"]] == ["zoo", "train_cnf"]
    assert "zoo/tsp20" in steps["notes"][0]
    assert not (tmp_path / "s").exists()
    # Its own, once it is there: a plan is a hit whatever is in it.
    tiny = recipe_for("tsp", 6, [*small, "pretrain.instances=32", "pretrain.validation_count=0"])
    Runner(store).run(pretrain.task(tiny))
    written = {field: getattr(tiny, field) for field in tiny.__dataclass_fields__} | {"written": ("problem",)}
    assert choice.start_of(type(tiny)(**written), store) is None


def test_attack_without_a_policy_uses_the_zoos(tmp_path: Path) -> None:
    """`cnf attack tsp` in an empty store attacks the fitting entry at once, instead of training for hours."""
    made = told("attack", "tsp", "--n", "10", "--count", "2", store=tmp_path)
    assert "zoo/tsp20" in made["notes"][0]
    assert told("show", made["id"], store=tmp_path)["lineage"]["inputs"]["policy"]["stage"] == "zoo"
