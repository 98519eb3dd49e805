"""Labelling: every instance gets a checked reference, runs continue where they stopped, bytes follow from the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnf_cli.errors import MissingDependency, RecipeError
from cnf_cli.evaluation import references as reference
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.interrupt import Interrupted
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.problems.validate import check_tour
from cnf_cli.stages import label
from cnf_cli.store import Input, Manifest, Store, make_key


def stored(store: Store, data: Dataset, folder: Path) -> Manifest:
    """The data set as an artifact."""
    path = folder / "given.h5"
    dataset.save(path, data)
    sections: dict[str, Any] = {"n": {"digest": path.read_bytes().hex()[:4000]}}
    inputs: dict[str, Input] = {}
    key = make_key("data", 1, sections, {})
    return store.commit(
        key, {"data.h5": path}, stage="data", version=1, sections=sections, inputs=inputs, provenance={}, checks={}
    )


def cities(count: int = 6, n: int = 9, **more: Any) -> Dataset:
    return Dataset("tsp", (Block(xy=np.random.default_rng(1).random((count, n, 2)), **more),))


def load(store: Store, manifest: Manifest) -> Dataset:
    return dataset.load(Artifact(store, manifest).path("data.h5"))


def test_every_reference_is_the_cost_of_its_tour(tmp_path: Path) -> None:
    """Cost and tour agree under the validator, for blocks of different sizes and rules, in the given order."""
    rng = np.random.default_rng(0)
    blocks = (
        Block(xy=rng.random((3, 8, 2)), names=("a", "b", "c")),
        Block(xy=rng.integers(0, 100, (2, 11, 2)), rule="euc_2d"),
    )
    store = Store(tmp_path / "s")
    made = load(store, Runner(store).run(label.task(stored(store, Dataset("tsp", blocks), tmp_path), "descent")))
    assert made.solver == "descent"
    for before, block in zip(blocks, made.blocks, strict=True):
        assert before.xy is not None
        assert np.array_equal(block.xy, before.xy)
        assert block.names == before.names
        assert block.cost is not None
        for i in range(len(block)):
            assert check_tour(block.tour_of(i), xy=before.xy[i], rule=block.rule) == pytest.approx(
                block.cost[i], abs=1e-12
            )


def test_keep_asks_only_for_what_is_unknown(tmp_path: Path) -> None:
    """With keep, a stored reference stays as it is, proof flag and all; without, it is replaced."""
    known = np.array([1.25, np.nan, np.nan, np.nan, np.nan, np.nan])
    data = cities(cost=known, proved=np.array([True] + [False] * 5))
    store = Store(tmp_path / "s")
    manifest = stored(store, data, tmp_path)
    kept = Runner(store).run(label.task(manifest, "nearest", keep=True))
    block = load(store, kept).blocks[0]
    assert block.cost is not None
    assert block.proved is not None
    assert block.cost[0] == 1.25
    assert block.proved[0]
    assert np.isfinite(block.cost).all()
    assert (kept.checks["kept"], kept.checks["solved"]) == (1, {"nearest": 5})
    assert load(store, kept).solver == "published + nearest"
    fresh = load(store, Runner(store).run(label.task(manifest, "nearest"))).blocks[0]
    assert fresh.cost is not None
    assert fresh.cost[0] != 1.25


def test_times_and_workers_do_not_change_the_bytes(tmp_path: Path) -> None:
    """Two runs of a deterministic solver, one and two workers: one key, equal bytes; times are in the provenance."""
    digests = set()
    for jobs in (1, 2):
        store = Store(tmp_path / f"s{jobs}")
        made = Runner(store).run(label.task(stored(store, cities(), tmp_path), "nearest", local={"jobs": jobs}))
        digests.add((made.key, made.outputs["data.h5"].sha256))
        assert len(made.provenance["seconds_each"]) == 6
    assert len(digests) == 1


def test_an_interrupted_run_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after three answers, the next run asks for the other three only and ends with all six."""
    from cnf_cli import interrupt

    store = Store(tmp_path / "s")
    task = label.task(stored(store, cities(), tmp_path), "nearest", local={"jobs": 1})
    real, asked = reference.solve_all, []

    def counting(given: Any, *args: Any, **options: Any) -> Any:
        asked.append(len(given))
        heard = options["on_done"]

        def three(at: int, outcome: Any) -> None:
            monkeypatch.setattr(interrupt, "_asked", 2 if at == 2 and len(asked) == 1 else None)
            heard(at, outcome)

        return real(given, *args, **{**options, "on_done": three})

    monkeypatch.setattr(reference, "solve_all", counting)
    with pytest.raises(Interrupted):
        Runner(store).run(task)
    monkeypatch.setattr(interrupt, "_asked", None)
    made = Runner(store).run(task)
    assert asked == [6, 3]
    assert made.checks["solved"] == {"nearest": 6}


def test_a_cut_off_or_false_line_is_not_believed(tmp_path: Path) -> None:
    """Kept answers with half a line, a wrong tour or garbage are asked again; the good ones are not."""
    block = cities().blocks[0]
    given = reference.instances_of("tsp", block)
    good = (
        '{"i": 0, "tour": [0,1,2,3,4,5,6,7,8], "cost": 0.1, "proved": false, "seconds": 0.5, "solver": "x", "note": ""}'
    )
    wrong = good.replace('"i": 0', '"i": 1').replace("7,8", "7,7")
    (tmp_path / "kept.jsonl").write_text("\n".join([good, wrong, "garbage", '{"i": 99, "tour": []}', good[:40]]))
    kept = reference._Kept(tmp_path / "kept.jsonl", given)
    assert list(kept.found) == [0]
    assert kept.found[0].cost == given[0].cost(range(9))


def test_failures_and_fallbacks_are_named(tmp_path: Path) -> None:
    """A solver that raises, forgets a node, crashes, hangs and lies: the run completes and names each instance."""
    data = cities(names=("good", "raises", "forgets", "crashes", "hangs", "lies"))
    store = Store(tmp_path / "s")
    task = label.task(stored(store, data, tmp_path), "tests.unit.faulty_solver", timeout_seconds=2.0, local={"jobs": 2})
    made = Runner(store).run(task)
    told = made.checks["fallback"]
    assert set(told) == {"raises", "forgets", "crashes", "hangs", "lies"}
    for name, why in (
        ("raises", "raised RuntimeError: boom"),
        ("forgets", "infeasible"),
        ("crashes", "crashed (SIGSEGV"),
        ("hangs", "was stopped after 2 s"),
        ("lies", "says its tour costs"),
    ):
        assert why in told[name], told[name]
    assert made.checks["failed"] == {}
    assert any("5 instances were solved by a fallback" in warning for warning in made.checks["warnings"])
    block = load(store, made).blocks[0]
    assert block.cost is not None
    assert block.xy is not None
    for i in range(6):
        assert check_tour(block.tour_of(i), xy=block.xy[i]) == pytest.approx(block.cost[i])


def test_wrong_or_missing_solvers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver of another problem is bad usage, one that is not installed a missing dependency."""
    store = Store(tmp_path / "s")
    manifest = stored(store, cities(), tmp_path)
    with pytest.raises(RecipeError, match="does not solve tsp"):
        Runner(store).run(label.task(manifest, "hgs"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependency):
        Runner(store).run(label.task(manifest, "concorde"))


def test_the_solver_and_its_settings_are_in_the_key_and_the_workers_are_not(tmp_path: Path) -> None:
    """Another solver, setting or time limit is another artifact; another number of workers is the same one."""
    store = Store(tmp_path / "s")
    data = stored(store, cities(), tmp_path)

    def key(*args: Any, **options: Any) -> str:
        task: Task = label.task(data, *args, **options)
        return task.key({"data": data})

    base = key("hgs")
    assert key("hgs", local={"jobs": 2, "executor": "dask"}) == base
    assert (
        len({base, key("hgs", {"iterations": 7}), key("pyvrp"), key("hgs", timeout_seconds=5.0), key("hgs", keep=True)})
        == 5
    )
