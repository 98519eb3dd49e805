"""When a stage's results move, its VERSION must go up: old artifacts would otherwise be served for new code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli.formats import checkpoint, dataset
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, data, pretrain, train_cnf
from cnf_cli.stages.runner import Runner
from cnf_cli.store import Store

GOLDEN = Path(__file__).parent.parent / "data" / "golden.json"
TABLES = {
    "problem": {"kind": "cvrp", "n": 6},
    "policy": {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16},
    "pretrain": {"instances": 64, "batch_size": 16, "lr": 0.01, "epoch_instances": 64, "validation_count": 0},
    "attack": {"kind": "attribute", "count": 12},
    "train": {
        "defence": "cnf",
        "instances": 32,
        "batch_size": 16,
        "lr": 0.01,
        "epoch_instances": 32,
        "validation_count": 0,
    },
}


def measured(folder: Path) -> dict[str, Any]:
    """A few numbers of every stage's result, coarse enough to be equal on every machine."""
    recipe = finish("golden", {k: dict(v) for k, v in TABLES.items()}, {})
    store = Store(folder)
    runner = Runner(store, RuntimeSection(engine="torch", threads=1))
    first = pretrain.task(recipe)
    tasks = {
        "data": data.task(recipe.problem, 5, 7),
        "pretrain": first,
        "attack": attack.task(recipe, first),
        "train_cnf": train_cnf.task(recipe, first),
    }
    out: dict[str, Any] = {}
    for name, task in tasks.items():
        key = runner.run(task).key
        made = store.find(key)
        assert made is not None
        if "data.h5" in made.outputs:
            block = dataset.load(store.open(key, "data.h5")).blocks[0]
            assert block.xy is not None
            values = [float(block.xy.mean()), float(block.xy.std()), float(block.xy[2, 3, 0])]
        else:
            files = sorted(name for name in made.outputs if name.endswith(".safetensors"))
            tensors = [checkpoint.load(store.open(key, file))[0] for file in files]
            values = [float(torch.cat([t.flatten() for t in model.values()]).abs().mean()) for model in tensors]
        out[name] = {"version": task.stage.version, "values": values}
    return out


def test_results_have_not_moved(tmp_path: Path) -> None:
    """Every stage gives the golden numbers of its VERSION."""
    golden = json.loads(GOLDEN.read_text())
    for name, now in measured(tmp_path).items():
        then = golden[name]
        assert now["version"] == then["version"], f"{name}: new VERSION: `python -m tests.unit.test_golden`, commit"
        assert now["values"] == pytest.approx(then["values"], rel=1e-3), f"{name}: results moved, raise its VERSION"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(measured(Path(folder)), indent=1) + "\n")
