"""No failing write of a stage leaves a false artifact: an error, a sound store, and the same bytes when repeated."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnf_cli import regular_files
from cnf_cli.errors import CnfError
from cnf_cli.evaluation.plan import Solvers, for_recipe
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.recipe.load import finish
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.stages import attack, data, imported, pretrain, report, selftest_count, selftest_sum, train_cnf, visualize
from cnf_cli.stages.selftest_count import SelftestSection
from cnf_cli.store import Manifest, Store, disk
from tests.reliability.store_kit import calls, temps

WRITES = ("write", "fsync", "replace", "rename", "mkdir")
TABLES: dict[str, dict[str, Any]] = {
    "problem": {"kind": "tsp", "n": 6},
    "policy": {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16},
    "pretrain": {"instances": 64, "batch_size": 16, "lr": 0.01, "epoch_instances": 16, "validation_count": 0},
    "attack": {"kind": "attribute", "count": 12},
    "train": {"instances": 32, "batch_size": 16, "lr": 0.01, "epoch_instances": 16, "validation_count": 0, "models": 2},
    "evaluate": {"count": 6, "augment": 1, "solver": "descent"},
}
Make = Callable[[Path], Task]


def recipe() -> Any:
    return finish("faults", {name: dict(table) for name, table in TABLES.items()}, {})


def policy(store: Path) -> Manifest:
    return runner(store).run(pretrain.task(recipe()))


def evaluation(store: Path) -> Manifest:
    return runner(store).run(_evaluation())


def _evaluation() -> Task:
    from cnf_cli.stages import evaluate

    sets, policies = for_recipe(recipe(), (), Solvers("descent"))
    about = recipe().evaluate
    given = {"augment": about.augment, "decode": about.decode, "seed": about.seed}
    return evaluate.task(sets, policies, (), alias="faults/evaluate", command="cnf evaluate", **given)


def _imported(store: Path) -> Task:
    path = store.parent / "a.csv"
    path.write_text("0,0\n0,1\n1,1\n1,0\n")
    return imported.task([path])


def _counted(store: Path) -> Task:
    section = SelftestSection(numbers=25, pause_seconds=0)
    count = Task(selftest_count.STAGE, {"selftest": section}, alias="selftest/count")
    return Task(selftest_sum.STAGE, {}, {"numbers": count})


def _report(store: Path) -> Task:
    found = evaluation(store)
    drawn = runner(store).run(visualize.task("attack", [found], Store(store)))
    return report.task([found], {"attack": drawn}, Store(store), alias="faults/report")


QUICK: dict[str, Make] = {
    "selftest": _counted,
    "data": lambda store: data.task(recipe().problem, 20, 1, alias="data/set"),
    "pretrain": lambda store: pretrain.task(recipe()),
}
SLOW: dict[str, Make] = {
    "imported": _imported,
    "attack": lambda store: attack.task(recipe(), policy(store)),
    "train_cnf": lambda store: train_cnf.task(recipe(), policy(store)),
    "evaluate": lambda store: _evaluation(),
    "visualize": lambda store: visualize.task("attack", [evaluation(store)], Store(store)),
    "report": _report,
}


@pytest.fixture(autouse=True)
def _few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying 512 folders for every fault would take most of the time."""
    monkeypatch.setattr(disk, "FAN", 4)


def runner(store: Path) -> Runner:
    return Runner(Store(store), RuntimeSection(engine="torch", threads=1))


def faulty(k: int, code: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    """The k-th write fails; reading goes on."""
    seen = 0

    def before(_: int, name: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += name in WRITES
        if name in WRITES and seen == k:
            before.done = True  # type: ignore[attr-defined]
            raise OSError(code, os.strerror(code))

    before.done = False  # type: ignore[attr-defined]
    return before


def check(place: Path, make: Make, code: int, every: int) -> int:
    """How many faults were tried: for k = 1, 1 + every, ... until the stage has no k-th write."""
    base = place / "base"
    task = make(base)
    Store(base)._prepare()
    shutil.copytree(base, place / "alone")
    alone = runner(place / "alone").run(task)
    for number, k in enumerate(range(1, 10_000, every)):
        here = place / "here"
        shutil.copytree(base, here)
        fault = faulty(k, code)
        told: list[CnfError] = []
        with calls(fault, modules=(disk, regular_files)):
            try:
                runner(here).run(task)
            except CnfError as error:  # any other would fail the test: users get an explanation
                told.append(error)
        assert all(error.hint for error in told)
        assert code != errno.ENOSPC or all("no space left on" in error.message for error in told)
        report = Store(here).verify(deep=True)
        assert report.ok, report.problems
        if not fault.done:  # type: ignore[attr-defined]
            return number
        again = runner(here).run(task)
        assert again.digest == alone.digest, f"write {k} of {task.stage.name}"
        assert Store(here).verify(deep=True).ok
        assert not temps(here)
        shutil.rmtree(here)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("stage", QUICK)
def test_a_failing_write_of_a_stage_is_an_error_and_the_rerun_gives_the_same_bytes(
    place: Path, stage: str, code: int
) -> None:
    """Every seventh write fails once: an explained error, a sound store, then the bytes of an undisturbed run."""
    assert check(place, QUICK[stage], code, 7) >= 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("stage", [*QUICK, *SLOW])
def test_no_failing_write_of_any_stage_leaves_a_false_artifact(place: Path, stage: str, code: int) -> None:
    """The same for every single write, of every stage that makes files."""
    assert check(place, {**QUICK, **SLOW}[stage], code, 1) >= 10
