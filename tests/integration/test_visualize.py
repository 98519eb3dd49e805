"""The demo end to end on a tiny recipe: every figure kind and the report from its own artifacts, and again for free."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cnf_cli import plots
from cnf_cli.pipeline.runner import Runner
from cnf_cli.stages import visualize
from cnf_cli.store import Manifest, Store
from tests.helpers import cnf, cnf_json

RECIPE = """
[problem]
kind = "{problem}"
n = 6
[policy]
width = 16
layers = 1
feed_forward = 16
[pretrain]
instances = 64
batch_size = 16
epoch_instances = 32
validation_count = 3
[attack]
count = 12
[train]
models = 2
instances = 32
batch_size = 8
epoch_instances = 16
validation_count = 3
[evaluate]
count = 12
solver = "descent"
[visualize]
count = 2
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return run_demo(tmp_path_factory.mktemp("tsp"), "tsp")


def run_demo(folder: Path, problem: str) -> tuple[Path, dict[str, Any]]:
    """A folder with a recipe, its store and its report; what the command printed."""
    (folder / "tiny.toml").write_text(RECIPE.format(problem=problem))
    done = cnf("demo", "--recipe", "tiny.toml", "--out", "out/report.html", "--json", cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def evaluation(folder: Path) -> tuple[Store, Manifest]:
    store = Store(folder / "artifacts")
    found = store.find(store.resolve("tiny/evaluate"))
    assert found is not None
    return store, found


def test_demo_writes_a_report(demo: tuple[Path, dict[str, Any]]) -> None:
    """The report is where the command says, tells the evaluation's own numbers, and shows all that applies."""
    check_report(*demo)


@pytest.mark.slow
def test_demo_with_vehicles(tmp_path: Path) -> None:
    """Depots, demands and routes go through all of it too."""
    check_report(*run_demo(tmp_path, "cvrp"))


def check_report(folder: Path, told: dict[str, Any]) -> None:
    html = Path(told["path"]).read_text()
    assert Path(told["path"]) == folder / "out" / "report.html"
    assert told["headline"] in html
    store, found = evaluation(folder)
    rows = json.loads(store.open(found.key, "rows.json").read_text())["rows"]
    for row in rows:
        assert f"{row['gap_percent']:.3f}".replace("-0.000", "0.000") in html
    shown = set(re.findall(r'<figure id="figure-(\w+)"', html))
    assert shown == {"hero", *plots.kinds()} - {"sizes"}
    for manifest in visualize.ancestry(store, [found]):
        assert manifest.key[:12] in html
    assert "cnf pretrain tiny.toml" in html


def test_second_demo_is_all_hits(demo: tuple[Path, dict[str, Any]]) -> None:
    """Nothing runs again, and the report is the same file."""
    folder, told = demo
    again = cnf("demo", "--recipe", "tiny.toml", "--out", "again.html", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "running" not in again.stderr
    assert again.stderr.count("found in the store") >= 15
    assert (folder / "again.html").read_bytes() == Path(told["path"]).read_bytes()


def test_demo_measures_what_evaluate_measures(demo: tuple[Path, dict[str, Any]]) -> None:
    """`cnf evaluate RECIPE` finds the demo's evaluation, so that the report is about the same numbers."""
    steps = cnf_json("evaluate", "tiny.toml", "--plan", cwd=demo[0])["plan"]
    assert {step["state"] for step in steps} == {"hit"}


def test_every_kind_from_the_evaluation_alone(demo: tuple[Path, dict[str, Any]]) -> None:
    """Each kind of figure renders from the evaluation's id; drawn again from scratch it has equal bytes."""
    store, found = evaluation(demo[0])
    for kind in plots.kinds():
        task = visualize.task(kind, [found], store, count=2)
        first = Runner(store).run(task)
        if kind in ("curves", "tours"):
            assert Runner(store).run(task, force=True).digest == first.digest, kind
        words = json.loads(store.open(first.key, f"{kind}.json").read_text())
        assert "nan" not in words["caption"]
        assert len(words["alt"]) > len(words["caption"])
        assert store.open(first.key, f"{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_changed_times_make_another_figure(demo: tuple[Path, dict[str, Any]]) -> None:
    """Curves show times, which are in no input's bytes: the key covers them all the same."""
    from dataclasses import replace

    store, found = evaluation(demo[0])
    runs = [m for m in visualize.ancestry(store, [found]) if m.stage == "pretrain"]

    class Other(Store):
        def lineage(self, key: str) -> Any:
            tree = super().lineage(key)
            slower = [{**line, "seconds": 9.0} for line in runs[0].provenance["curve"]]
            return replace(tree, manifest=replace(runs[0], provenance={**runs[0].provenance, "curve": slower}))

    one = visualize.task("curves", runs, store)
    other = visualize.task("curves", runs, Other(store.root))
    assert one.dumped()["figure"]["facts"] != other.dumped()["figure"]["facts"]
    assert visualize.task("tours", runs, store).dumped()["figure"]["facts"] == ""


def test_command_line(demo: tuple[Path, dict[str, Any]]) -> None:
    """Files go where the user says; mistakes get the next command to type and the right exit code."""
    folder, _ = demo
    made = cnf_json("visualize", "tradeoff", "tiny/evaluate", "--out", "pictures", cwd=folder)
    assert [Path(name).name for name in made["files"]] == ["tradeoff.png", "tradeoff.svg"]
    assert all((folder / name).stat().st_size > 1000 for name in made["files"])
    listed = cnf_json("visualize", "--list", cwd=folder)["figures"]
    assert [one["kind"] for one in listed] == list(plots.kinds())
    for args, code, words in (
        (("visualize", "tradeof", "tiny/evaluate"), 2, "did you mean 'tradeoff'"),
        (("visualize", "tours", "tiny/pretrain"), 3, "no evaluate or label artifact is given"),
        (("visualize", "tours", "tiny/evaluate", "--instance", "nobody"), 3, "from 0 to 11"),
        (("report", "tiny/pretrain"), 3, "is not an evaluation"),
        (("visualize",), 2, "nothing to draw"),
    ):
        done = cnf(*args, cwd=folder)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
