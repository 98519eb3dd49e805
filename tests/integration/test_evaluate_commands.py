"""`cnf label`, `cnf solvers`, `cnf evaluate`, `cnf compare` as a user meets them, on tiny experiments."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import cnf, cnf_json

TINY = """
[problem]
n = 8
[policy]
width = 16
layers = 1
heads = 2
feed_forward = 16
[pretrain]
instances = 128
epoch_instances = 128
validation_count = 0
[attack]
count = 12
[train]
models = 2
instances = 32
batch_size = 16
epoch_instances = 32
validation_count = 0
[evaluate]
count = 12
solver = "descent"
[runtime]
device = "cpu"
threads = 1
"""
NEEDED = ("set", "method", "count", "cost", "gap_percent", "gap_ci95", "reference", "seconds")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """(recipe, store, the evaluation) of one tiny experiment."""
    folder = tmp_path_factory.mktemp("evaluate")
    recipe = folder / "tiny.toml"
    recipe.write_text(TINY)
    store = folder / "store"
    return recipe, store, cnf_json("evaluate", str(recipe), "--solver", "nearest", store=store)


def test_a_recipe_gives_the_papers_three_metrics(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """Clean, fixed and white-box sets; single policy, ensemble and solver; named so that nobody confuses them."""
    told = made[2]
    main = [r for r in told["rows"] if r["model"] is None]
    pairs = {(r["set"].split(" ")[0], r["set"].partition("(")[2].split(":")[0], r["method"]) for r in main}
    assert pairs == {
        *(("clean", "uniform)", m) for m in ("pretrained(1)", "cnf(2)", "nearest")),
        *(("fixed", "black box", m) for m in ("pretrained(1)", "cnf(2)", "nearest")),
        *(("adversarial", "white box", m) for m in ("pretrained(1)", "cnf(2)")),
    }
    for row in told["rows"]:
        assert set(NEEDED) <= set(row)
        assert row["count"] == 12
        assert "descent, not proved optimal" in row["reference"]
    full = [r for r in main if r["augment"] == 8 or r["method"] == "nearest"]
    assert all(r["seconds"] is not None for r in full)
    assert {c["set"] for c in told["comparisons"]} == {r["set"] for r in main if not r["set"].startswith("adversarial")}
    assert all(c["verdict"] for c in told["comparisons"])
    assert (told["device"], told["problem"]) == ("cpu", "tsp")


def test_the_second_call_is_a_hit_with_the_same_rows(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """Nothing runs again, also in a read-only store (promise 21)."""
    recipe, store, told = made
    folders = [p for p in (store, *store.rglob("*")) if p.is_dir()]
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in folders}
    for path in folders:
        path.chmod(0o555)
    try:
        again = cnf("evaluate", str(recipe), "--solver", "nearest", "--json", store=store)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert again.returncode == 0, again.stderr
    assert "running" not in again.stderr
    assert json.loads(again.stdout)["rows"] == told["rows"]


def test_styles(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """A table by default; CSV with all rows, LaTeX and Markdown with the table's; two styles at once are refused."""
    recipe, store, told = made
    base = ("evaluate", str(recipe), "--solver", "nearest", "-q")
    rows = list(csv.DictReader(io.StringIO(cnf(*base, "--csv", store=store).stdout)))
    assert len(rows) == len(told["rows"])
    assert float(rows[0]["cost"]) == told["rows"][0]["cost"]
    latex = cnf(*base, "--latex", store=store).stdout
    assert latex.startswith(r"\begin{tabular}")
    assert r"gap \%" in latex
    markdown = cnf(*base, "--markdown", "--per-model", store=store).stdout
    assert "cnf(2) model 1" in markdown
    assert markdown.splitlines()[1].startswith("|---|")
    assert cnf(*base, "--csv", "--latex", store=store).returncode == 2


def test_data_with_named_and_newest_policies(made: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    """A file of the user's own, and a stored set; without --with the newest policies are taken and named."""
    _, store, _ = made
    given = tmp_path / "mine.csv"
    given.write_text("x,y\n0,0\n3,0\n3,4\n0,4\n1,1\n")
    done = cnf("evaluate", "--data", str(given), "--reference", "descent", "--json", store=store)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("with your newest policy for tsp") == 2
    told = json.loads(done.stdout)
    assert {r["set"] for r in told["rows"]} == {"mine.csv"}
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "5", "-q", store=store).stdout.strip()
    both = cnf_json("evaluate", "--data", data, "--with", "tiny/pretrain", "--aug", "2", "--decode", "sample",
                    "--solver", "descent", "--reference", "descent", store=store)  # fmt: skip
    rows = {(r["method"], r["augment"]): r for r in both["rows"]}
    assert rows["descent", 1]["gap_percent"] == 0.0
    assert [r["decode"] for r in both["rows"]] == ["sample", "sample", None]


def test_warnings_of_what_an_evaluation_reads_are_told(made: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    """A file of degrees is measured with a warning, when it is taken in and when the store has it and in --json."""
    _, store, _ = made
    given = tmp_path / "towns.csv"
    given.write_text("lon,lat\n7.1,50.7\n6.9,50.9\n6.8,51.2\n7.6,51.9\n")
    for _ in range(2):
        done = cnf("evaluate", "--data", str(given), "--reference", "descent", "--json", store=store)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("warning: towns: degrees (lon, lat) are costed as if the map were a plane") == 1
        assert "as if the map were a plane" in " ".join(json.loads(done.stdout)["notes"])


def test_as_names_the_evaluation(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """`evaluate --as` gives the result that name, for data, benchmarks and recipes alike, also where it was there."""
    recipe, store, told = made
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "3", "-q", store=store).stdout.strip()
    for name, args in (
        ("mine/data", ("--data", data, "--solver", "nearest", "--reference", "descent")),
        ("mine/bench", ("--bench", "tsplib:ulysses16", "--solver", "nearest")),
        ("mine/recipe", (str(recipe), "--solver", "nearest")),
    ):
        found = cnf_json("evaluate", *args, "--as", name, store=store)
        assert cnf_json("show", name, store=store)["id"] == found["id"]
    assert cnf_json("show", "mine/recipe", store=store)["id"] == told["id"]
    assert cnf("show", "mine/nothing", store=store).returncode == 3


def test_compare_joins_equal_protocols_and_refuses_others(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """Two evaluations of one set become one table with paired tests; another augmentation is refused by name."""
    _, store, _ = made
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "6", "-q", store=store).stdout.strip()
    ids = []
    for policy, aug in (("tiny/pretrain", "8"), ("tiny/train-cnf", "8"), ("tiny/pretrain", "1")):
        made_ = cnf_json(
            "evaluate", "--data", data, "--with", policy, "--aug", aug, "--reference", "descent", store=store
        )
        ids.append(made_["id"])
    told = cnf_json("compare", ids[0], ids[1], store=store)
    assert len({r["method"] for r in told["rows"]}) == 2
    assert len(told["comparisons"]) == 1
    refused = cnf("compare", ids[0], ids[2], store=store)
    assert refused.returncode == 2
    assert "augment: 8 and 1" in refused.stderr
    assert cnf("compare", data, store=store).returncode == 3


def test_what_was_typed_is_told_beside_what_tables_say(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """Tables name a policy by its content; who gave an alias is told which one it is, who gave an id knows."""
    _, store, _ = made
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "2", "-q", store=store).stdout.strip()
    ids = [cnf_json("show", alias, store=store)["id"] for alias in ("tiny/pretrain", "tiny/train-cnf")]
    given = ("--with", "tiny/pretrain", "--with", ids[1][:12])
    done = cnf("evaluate", "--data", data, *given, "--reference", "descent", store=store)
    assert f"tiny/pretrain is pretrain(1) {ids[0][:8]}\n" in done.stderr
    assert f"{ids[1][:8]} is" not in done.stderr
    assert f"cnf(2) {ids[1][:8]}" in done.stdout


def test_label_and_solvers(made: tuple[Path, Path, dict[str, Any]]) -> None:
    """`cnf label` makes a new artifact with the solver's checks; settings are checked; `cnf solvers` lists licences."""
    _, store, _ = made
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "5", "-q", store=store).stdout.strip()
    told = cnf_json("label", data, "--solver", "farthest", "--jobs", "1", store=store)
    assert told["checks"]["solved"] == {"farthest": 5}
    assert cnf_json("label", data, "--solver", "farthest", "--jobs", "2", store=store)["hit"] is True
    for args, code in (
        (["--solver", "hgs"], 2),
        (["--solver", "farthest", "--param", "nope=1"], 2),
        (["--solver", "fathest"], 2),
        (["--executor", "cloud"], 2),
    ):
        done = cnf("label", data, *args, store=store)
        assert (done.returncode, "hint:" in done.stderr) == (code, True), done.stderr
    listed = {s["kind"]: s for s in cnf_json("solvers")["solvers"]}
    assert {"nearest", "farthest", "descent", "fast_tsp", "hgs", "elkai", "concorde", "lkh"} <= set(listed)
    assert "non-commercial" in listed["elkai"]["licence"]


def test_bench_on_a_fresh_machine(made: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    """With nothing but the package: built-in heuristics beside the zoo; the embedded set, and what is missing."""
    _, store, _ = made
    env = os.environ.pop("CNF_BENCH_DIR", None)
    try:
        bare = cnf("evaluate", "--bench", "cvrplib:..110", "--json", store=tmp_path / "empty")
        assert bare.returncode == 0, bare.stderr
        assert "cnf pretrain cvrp" in bare.stderr
        methods = list(dict.fromkeys(row["method"] for row in json.loads(bare.stdout)["rows"]))
        assert methods[-2:] == ["nearest", "descent"]
        assert all(name.startswith("zoo/cvrp") for name in methods[:-2])
        done = cnf("evaluate", "--bench", "tsplib:ulysses*,pr107", "--paper", "--aug", "2", "--json", store=store)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert [i["name"] for i in told["instances"]] == ["pr107", "ulysses16", "ulysses22"]
        assert told["instances"][0]["cost"]["paper CNF"] == 44719
        assert all(r["proved"] for r in told["rows"])
        solver = cnf("evaluate", "--bench", "tsplib:gr*", "--solver", "farthest", store=store)
        assert solver.returncode == 0, solver.stderr
        assert "gr17" in solver.stdout
        missing = cnf("evaluate", "--bench", "tsplib:kroA100", store=store)
        assert missing.returncode == 3
        assert "cnf bench fetch tsplib" in missing.stderr
    finally:
        if env is not None:
            os.environ["CNF_BENCH_DIR"] = env


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    """Nothing, too much, or an unknown word: exit code 2 (3 for a missing artifact) and a hint."""
    for args, code in (
        ([], 2),
        (["--bench", "tsplib", "--data", "x"], 2),
        (["--bench", "tsplob"], 2),
        (["--bench", "tsplib", "--decode", "beam"], 2),
        (["--data", "nosuch", "--solver", "nearest"], 3),
    ):
        done = cnf("evaluate", *args, store=tmp_path)
        assert done.returncode == code, (args, done.stderr)
        assert "hint:" in done.stderr or "one of" in done.stderr
