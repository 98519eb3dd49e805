"""When a stage's results move, its VERSION must go up: old artifacts would otherwise be served for new code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnf_cli.engine import get_engine
from cnf_cli.errors import CnfError
from cnf_cli.formats import checkpoint, dataset
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe import Recipe
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, data, evaluate, first, imported, label, pretrain, train_cnf
from cnf_cli.store import Manifest, Store

GOLDEN = Path(__file__).parent.parent / "data" / "golden.json"
SMALL = {
    "pretrain": {"instances": 64, "batch_size": 16, "lr": 0.01, "epoch_instances": 64, "validation_count": 0},
    "attack": {"count": 12},
    "train": {
        "defence": "cnf",
        "instances": 32,
        "batch_size": 16,
        "lr": 0.01,
        "epoch_instances": 32,
        "validation_count": 0,
    },
}
POLICY = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16}
SHAPES = ("uniform", "rotation", "explosion", "gaussian_mixture")
FILE = "NAME: five\nTYPE: TSP\nDIMENSION: 5\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n"


def recipe_for(kind: str, dist: str = "uniform") -> Recipe:
    tables: dict[str, Any] = {name: dict(table) for name, table in SMALL.items()}
    tables["problem"] = {"kind": kind, "n": 6} | ({} if kind == "atsp" else {"dist": dist})
    tables["policy"] = {**POLICY, **({"kind": "matnet"} if kind == "atsp" else {})}
    tables["attack"]["kind"] = "attribute"
    return finish("golden", tables, {})


def tasks(folder: Path, kind: str) -> Iterator[tuple[str, Task]]:
    """A small task of every stage that computes, for one problem."""
    recipe = recipe_for(kind)
    for dist in SHAPES if kind != "atsp" else SHAPES[:1]:
        yield f"data {dist}", data.task(recipe_for(kind, dist).problem, 5, 7)
    clean, policy = data.task(recipe.problem, 5, 7), pretrain.task(recipe)
    yield "first", first.task(clean, 3)
    labelled = label.task(clean, "descent" if kind != "atsp" else "nearest")
    yield "label", labelled
    yield "pretrain", policy
    yield "attack", attack.task(recipe, policy)
    yield "train_cnf", train_cnf.task(recipe, policy)
    sets = [evaluate.SetOf("clean", labelled)]
    yield "evaluate", evaluate.task(sets, [("policy", policy)], augment=2, decode="greedy", normalise="auto", seed=1)
    if kind == "tsp":
        path = folder / "five.tsp"
        path.write_text(FILE + "".join(f"{i} {7 * i % 5} {3 * i % 4}\n" for i in range(1, 6)) + "EOF\n")
        yield "imported", imported.task([path])


def numbers(store: Store, made: Manifest) -> list[float]:
    """A few numbers of a result, coarse enough to be equal on every machine."""
    if "rows.json" in made.outputs:
        rows = json.loads(store.open(made.key, "rows.json").read_text())["rows"]
        return [float(row["cost"]) for row in rows]
    if "data.h5" in made.outputs:
        block = dataset.load(store.open(made.key, "data.h5")).blocks[0]
        values = block.xy if block.xy is not None else block.matrix
        assert values is not None
        extra = [float(np.asarray(v, "f8").mean()) for v in (block.demand, block.cost) if v is not None]
        return [float(values.mean()), float(values.std()), float(values[-1].flat[5]), *extra]
    files = sorted(name for name in made.outputs if name.endswith(".safetensors"))
    tensors = [checkpoint.load(store.open(made.key, file))[0] for file in files]
    return [float(torch.cat([t.flatten() for t in model.values()]).abs().mean()) for model in tensors]


def measured(folder: Path, kind: str, engine: str) -> dict[str, Any]:
    """The version and a few numbers of every stage's result."""
    store = Store(folder / engine)
    runner = Runner(store, RuntimeSection(engine=engine, threads=1))  # type: ignore[arg-type]
    results: dict[str, Any] = {}
    for name, task in tasks(folder, kind):
        made = store.find(runner.run(task).key)
        assert made is not None
        results[f"{kind} {name}"] = {"version": task.stage.version, "values": numbers(store, made)}
    return results


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("kind", ["tsp", "cvrp", "atsp"])
def test_results_have_not_moved(tmp_path: Path, kind: str, engine: str) -> None:
    """Every stage gives the golden numbers of its VERSION, by either engine."""
    try:
        get_engine(engine, torch.device("cpu"))
    except CnfError:
        pytest.skip("the native extension is not built")
    golden = json.loads(GOLDEN.read_text())
    # Adam turns the rounding of a gradient that should be 0 into a whole step, so engines drift apart in training.
    near = {"torch": 1e-3, "native": 5e-3}[engine]
    for name, now in measured(tmp_path, kind, engine).items():
        then = golden[name]
        assert now["version"] == then["version"], f"{name}: new VERSION: `python -m tests.unit.test_golden`, commit"
        assert now["values"] == pytest.approx(then["values"], rel=near), f"{name}: results moved, raise its VERSION"


if __name__ == "__main__":
    import tempfile

    every: dict[str, Any] = {}
    for problem in ("tsp", "cvrp", "atsp"):
        with tempfile.TemporaryDirectory() as folder:
            every |= measured(Path(folder), problem, "torch")
    GOLDEN.write_text(json.dumps(every, indent=1) + "\n")
