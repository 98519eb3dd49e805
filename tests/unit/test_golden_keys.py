"""Every stage's key stays what it was: a stored artifact is a hit only while its key is computed as it was then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe.load import finish, load_recipe
from cnf_cli.stages import (
    attack,
    bench,
    data,
    evaluate,
    first,
    imported,
    label,
    pretrain,
    report,
    selftest_count,
    selftest_sum,
    train_cnf,
    visualize,
    zoo,
)
from cnf_cli.stages.bench import BenchSection
from cnf_cli.stages.imported import ImportSection
from cnf_cli.stages.report import ReportSection
from cnf_cli.stages.selftest_count import SelftestSection
from cnf_cli.store import Manifest, Output, Store
from cnf_cli.zoo.cards import cards

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden-keys.json"


def stand_in(name: str) -> Manifest:
    """An artifact whose content is that name: keys depend on inputs by content alone."""
    outputs = {"data.h5": Output((name.encode().hex() + "0" * 64)[:64], 1)}
    return Manifest("data", "0" * 64, 1, outputs, {}, {}, {}, {})


def key(task: Task) -> str:
    """The task's key, each input replaced by an artifact whose content is the input's name."""
    return task.key({name: stand_in(name) for name in task.inputs})


def tasks() -> Iterator[tuple[str, Task]]:
    """A task of every stage, and the training stages of every recipe in the tree."""
    policy, clean, store = stand_in("policy"), stand_in("clean"), Store(Path("nowhere"))
    for path in sorted((ROOT / "recipes").rglob("*.toml")):
        recipe, name = load_recipe(path), path.relative_to(ROOT).as_posix()
        yield f"pretrain {name}", pretrain.task(recipe)
        yield f"pretrain from {name}", pretrain.task(recipe, policy, clean)
        yield f"attack {name}", attack.task(recipe, policy, clean)
        yield f"white box {name}", attack.task(recipe, policy, clean, white_box=True)
        yield f"train_cnf {name}", train_cnf.task(recipe, policy)
    for kind in ("tsp", "cvrp", "atsp"):
        for dist in ("uniform", "rotation", "explosion", "gaussian_mixture") if kind != "atsp" else ("uniform",):
            recipe = finish(kind, {"problem": {"kind": kind, "n": 20, "dist": dist}}, {})
            yield f"data {kind} {dist}", data.task(recipe.problem, 7, 3)
    for solver in ("nearest", "descent", "farthest", "fast_tsp", "hgs", "pyvrp", "elkai", "cpsat", "lkh", "concorde"):
        yield f"label {solver}", label.task(clean, solver)
        yield f"label the rest {solver}", label.task(clean, solver, keep=True, timeout_seconds=5.0)
    yield "first", first.task(clean, 5)
    sets = [evaluate.SetOf("clean", clean), evaluate.SetOf("hard", clean, only=0)]
    plain: dict[str, Any] = {"augment": 8, "decode": "greedy", "normalise": "auto", "seed": 1}
    yield "evaluate", evaluate.task(sets, [("policy", policy)], **plain)
    solved = [evaluate.SetOf("clean", clean, (clean,))]
    yield "evaluate a solver", evaluate.task(solved, [("policy", policy)], ("hgs",), **{**plain, "decode": "sample"})
    yield (
        "bench",
        Task(bench.STAGE, {"bench": BenchSection(library="tsplib", names=("a",), sha256=("0",), best=(1.0,))}),
    )
    yield "imported", Task(imported.STAGE, {"import": ImportSection(files=("0" * 64,), names=("a.tsp",))})
    yield "visualize", visualize.task("tours", [], store)
    yield "report", Task(report.STAGE, {"report": ReportSection(facts="0")}, {"evaluation-000": clean})
    yield "selftest_count", Task(selftest_count.STAGE, {"selftest": SelftestSection()})
    yield "selftest_sum", Task(selftest_sum.STAGE, {}, {"numbers": clean})
    for card in cards():
        yield f"zoo {card.name}", zoo.task(card.name)


def test_every_key_is_what_it_was() -> None:
    """Each recorded key is computed again, to the digit; a new task must be recorded, none may be lost."""
    golden, now = json.loads(GOLDEN.read_text()), {name: key(task) for name, task in tasks()}
    moved = [name for name in golden if now.get(name) != golden[name]]
    told = "stored artifacts of these would be made again; if a VERSION was raised on purpose, or a recipe changed"
    assert not moved, f"{told}: `python -m tests.unit.test_golden_keys`, look at the difference, commit: {moved}"
    assert now.keys() == golden.keys(), "new: `python -m tests.unit.test_golden_keys`, commit"


def test_a_key_follows_from_everything_it_should() -> None:
    """Another setting, another content of an input, another version: another key each."""
    recipe = finish("one", {"problem": {"kind": "tsp", "n": 20}}, {})
    other = finish("one", {"problem": {"kind": "tsp", "n": 20}, "attack": {"count": 11}}, {})
    one = attack.task(recipe, stand_in("policy"), stand_in("clean"))
    changed = attack.task(other, stand_in("policy"), stand_in("clean"))
    inputs = {"policy": stand_in("policy"), "clean": stand_in("other")}
    assert len({key(one), key(changed), one.key(inputs)}) == 3


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: key(task) for name, task in tasks()}, indent=0) + "\n")
