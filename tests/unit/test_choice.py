"""Which policy answers where none is named: the newest of one's own that fits, else the zoo's; never the demo's."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cnf_cli.evaluation import policy_choice as choice
from cnf_cli.store import Input, Manifest, Store, make_key
from cnf_cli.zoo import cards, sizes
from tests.conftest import ROOT
from tests.unit.test_zoo import cnf, told

SMALL = ["policy.width=16", "policy.layers=1", "policy.heads=2", "policy.feed_forward=16", "pretrain.instances=64"]
QUICK = [*SMALL, "pretrain.validation_count=0"]
Make = Callable[..., Manifest]


def sets(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "s")


@pytest.fixture
def make(store: Store, tmp_path: Path) -> Make:
    """Commits an artifact that looks like a policy: its problem, size, number of models and time of finishing."""
    numbers = itertools.count()

    def commit(
        n: int | None,
        finished: str,
        *,
        problem: str = "tsp",
        models: int = 1,
        stage: str = "pretrain",
        made_as: str = "",
        known: str = "",
        start: Manifest | None = None,
    ) -> Manifest:
        k = next(numbers)
        names = ["model.safetensors"] if models == 1 else [f"model-{i}.safetensors" for i in range(models)]
        file = tmp_path / f"weights-{k}"
        file.write_bytes(b"%d" % k)
        sections = {"run": {"k": k}} | ({"problem": {"kind": problem, "n": n}} if n else {})
        inputs = {"policy": Input(start.key, start.digest)} if start else {}
        key = make_key(stage, 1, sections, {name: one.digest for name, one in inputs.items()})
        facts = {"finished": f"2026-01-01T00:00:{finished}Z", "made_as": made_as}
        checks = {"problem": problem, "models": models, "known": known}
        files = dict.fromkeys(names, file)
        about = {"sections": sections, "inputs": inputs, "provenance": facts, "checks": checks}
        return store.commit(key, files, stage=stage, version=1, **about)  # type: ignore[arg-type]

    return commit


def chosen(store: Store, n: int, problem: str = "tsp") -> str:
    """The key, or the name in the zoo, of what answers."""
    found = choice.choose(store, problem, n)
    assert found is not None
    return found.policy if isinstance(found.policy, str) else found.policy.key


def test_the_last_finished_answers_whatever_the_file_times_say(store: Store, make: Make) -> None:
    """An ancestor that a later commit made young again is not newer than what was made from it."""
    old = make(50, "01.000")
    new = make(50, "02.000", stage="train_cnf", models=3, start=old)
    for manifest, time in ((old, 2e9), (new, 1e9)):
        os.utime(store.manifest(manifest.key), (time, time))
    assert chosen(store, 50) == new.key
    assert [manifest.key for manifest in store.manifests()] == [new.key, old.key]


def test_milliseconds_order_what_follows_within_a_second(store: Store, make: Make) -> None:
    """Two runs finished in the same second keep their order, and a run's record has the milliseconds."""
    from cnf_cli.pipeline.provenance import provenance

    first, second = make(50, "01.250"), make(50, "01.750")
    for manifest, time in ((first, 2e9), (second, 1e9)):
        os.utime(store.manifest(manifest.key), (time, time))
    assert chosen(store, 50) == second.key
    assert len(provenance((), 0.0)["finished"]) == len("2026-01-01T00:00:00.000Z")


def test_own_policy_answers_only_where_it_fits_as_well_as_the_zoos(store: Store, make: Make) -> None:
    """A TSP20 of one's own does not answer 100 stops, where the zoo has a TSP100; and the line says so."""
    small, middle = make(20, "02.000"), make(60, "01.000")
    assert chosen(store, 100) == "tsp100"
    assert chosen(store, 20) == small.key
    assert chosen(store, 55) == middle.key
    found = choice.choose(store, "tsp", 100)
    assert found is not None
    assert "made for 20 nodes, and you have 100" in found.told
    assert f"--with {small.key[:12]}" in found.told
    assert "zoo/tsp100" in found.told


def test_own_policy_of_any_size_answers_where_the_zoo_has_none(store: Store, make: Make) -> None:
    """The zoo's matrices end at 20 nodes: beyond them an import of unknown size is better than nothing."""
    assert choice.choose(store, "atsp", 50) is None
    mine = make(None, "01.000", problem="atsp", stage="imported")
    assert chosen(store, 50, "atsp") == mine.key
    assert chosen(store, 20, "atsp") == "atsp20"


def test_an_import_counts_where_its_name_says_its_size(store: Store, make: Make) -> None:
    """A published checkpoint says what it was made for; of another nobody knows, and it has to be named."""
    make(None, "02.000", stage="imported")
    assert chosen(store, 100) == "tsp100"
    published = make(None, "01.000", stage="imported", known="AMDKD TSP100")
    assert chosen(store, 100) == published.key
    assert chosen(store, 50) == "tsp50"


def test_the_demos_policies_never_answer(store: Store, make: Make) -> None:
    """Neither under its names, nor after these were taken away, nor as recorded before names were kept."""
    made = make(20, "01.000", made_as="demo/pretrain")
    named = make(20, "02.000")
    store.tag("demo/train-cnf", named.key)
    store.tag("mine", made.key)
    assert chosen(store, 20) == "tsp20"
    found = choice.choose(store, "tsp", 20)
    assert found is not None
    assert "the demo's, which never stands in" in found.told


def test_first_page_after_the_demo_gives_the_zoos_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's first three commands, as printed, with the demo's policies (trained shorter) in the store."""
    where = tmp_path / "s"
    tiny = sets(*QUICK, "train.instances=32", "train.validation_count=0", "train.models=2", "attack.count=8")
    assert cnf("train-cnf", str(ROOT / "recipes" / "demo.toml"), *tiny, store=where).exit_code == 0
    assert {"demo/pretrain", "demo/train-cnf"} <= set(Store(where).refs())
    rng = random.Random(1)
    lines = [f"{rng.random()!r},{rng.random()!r}" for _ in range(100)]
    monkeypatch.chdir(tmp_path)
    Path("my_stops.csv").write_text("\n".join(["x,y", *lines]))
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## First steps")[2]
    commands = [shlex.split(line, comments=True)[1:] for line in page.splitlines() if line.startswith("cnf ")][:3]
    assert [words[0] for words in commands] == ["solve", "zoo", "attack"]
    assert told(*commands[0], store=where)["rows"][0]["policy"] == "zoo/tsp100"
    assert "zoo/tsp100" in {row["name"] for row in told(*commands[1], store=where)["zoo"]}
    made = told(*commands[2], "--count", "2", store=where)
    assert told("show", made["id"], store=where)["lineage"]["inputs"]["policy"]["stage"] == "zoo"
    bare = told("attack", "tsp", "--n", "20", "--count", "2", store=where)
    assert told("show", bare["id"], store=where)["lineage"]["inputs"]["policy"]["stage"] == "zoo"
    (answer,) = {row["method"] for row in told("evaluate", "--data", "my_stops.csv", "--aug", "1", store=where)["rows"]}
    assert answer == "zoo/tsp100"


def test_the_same_policy_of_ones_own_answers_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """solve, evaluate, attack and train-cnf take the same one: there is one rule."""
    where = tmp_path / "s"
    monkeypatch.chdir(tmp_path)
    key = told("pretrain", "tsp", "--n", "11", *sets(*QUICK), "--as", "mine", store=where)["id"]
    Path("stops.csv").write_text("x,y\n" + "\n".join(f"{k},{k * k % 11}" for k in range(11)))
    assert told("solve", "stops.csv", store=where)["rows"][0]["policy"] == key
    (answer,) = {row["method"] for row in told("evaluate", "--data", "stops.csv", "--aug", "1", store=where)["rows"]}
    assert key[:8] in answer
    for args in (("attack", "tsp", "--n", "12"), ("train-cnf", "tsp", "--n", "12")):
        found = json.loads(cnf(*args, "--plan", "--json", store=where).stdout)
        assert [step["stage"] for step in found["plan"]][-1] == args[0].replace("-", "_")
        assert key[:12] in found["notes"][0]


@pytest.mark.parametrize("name", [one.name for one in cards.cards() if one.kind != "atsp"])
def test_cards_hold_gaps_at_the_sizes_above_their_own(name: str) -> None:
    """Each measured size has a row with and without copies and its command, and gaps grow with the size."""
    one = cards.card(name)
    for copies in (1, one.fixed.augment):
        rows = {g.nodes: g for g in one.gaps if g.nodes and g.augment == copies}
        assert {n: g.instances for n, g in rows.items()} == sizes.others(one)
        found = [sizes.expected(one, n, copies) for n in (one.n, *sorted(rows))]
        assert [round(e.percent, 6) for e in found if e] == sorted(round(e.percent, 6) for e in found if e)
        assert all(f"--n {n} " in g.command and f"--with {one.alias}" in g.command for n, g in rows.items() if n)


def test_expected_gap_lies_between_the_measured_ones() -> None:
    """At a measured size it is what was measured, between two it is between them, beyond the last it is more."""
    one = cards.card("tsp100")
    measured = {g.nodes: g.gap_percent for g in one.gaps if g.nodes and g.augment == 8}
    at = {n: sizes.expected(one, n, 8) for n in (100, 200, 300, 500, 1000, 5000)}
    assert sizes.expected(one, 50, 8) is None
    assert sizes.expected(cards.card("atsp20"), 20, 16) is None
    assert all(at[n] == sizes.Expected(gap, at_least=False) for n, gap in measured.items() if n)
    between, last = at[300], at[5000]
    assert between is not None
    assert measured[200] < between.percent < measured[500]
    assert last == sizes.Expected(measured[1000], at_least=True)


def test_a_policy_far_off_its_size_says_how_far_off_it_will_be(tmp_path: Path) -> None:
    """Made for 20, you have 90: with the card's figure, and with commands that exist; near its size nothing is said."""
    rng = random.Random(3)
    for n in (18, 90):
        (tmp_path / f"{n}.csv").write_text("\n".join(f"{rng.random()!r},{rng.random()!r}" for _ in range(n)))

    def notes(*args: str) -> list[str]:
        found = told("solve", *args, "--with", "zoo/tsp20", store=tmp_path / "s").get("notes", [])
        return [note for note in found if "was made for" in note]

    assert notes(str(tmp_path / "18.csv")) == []
    (note,) = notes(str(tmp_path / "90.csv"))
    gap = sizes.expected(cards.card("tsp20"), 90, 8)
    assert gap is not None
    assert f"zoo/tsp20 was made for 20 nodes, you have 90: expect {gap.told} above" in note
    (biased,) = notes(str(tmp_path / "90.csv"), "--distance-bias", "0.3")
    assert "%" not in biased
    for command in re.findall(r"`cnf ([^`]*)`", note):
        words = [str(tmp_path / "90.csv") if word == "FILE" else word for word in command.split()]
        assert cnf(*words, "--plan", store=tmp_path / "s").exit_code == 0


def test_own_policy_far_off_says_so_without_a_figure(store: Store, make: Make) -> None:
    """Nobody measured a policy of one's own: its size is told, no percentage; of an unknown size nothing is known."""
    mine = make(20, "01.000")
    assert choice.far_off(store, mine, 30, 8) == ""
    line = choice.far_off(store, mine, 100, 8)
    assert "was made for 20 nodes, you have 100" in line
    assert "nobody measured" in line
    assert choice.far_off(store, make(None, "02.000", stage="imported"), 100, 8) == ""
