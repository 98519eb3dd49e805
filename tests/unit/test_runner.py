"""The runner: hits, misses, reasons, forced reruns, refusals, damage."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cnf_cli.errors import ArtifactError
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.stages import selftest_count, selftest_sum, table
from cnf_cli.stages.selftest_count import SelftestSection
from cnf_cli.store import Store
from tests.reliability.store_kit import age


def tasks(numbers: int = 20) -> tuple[Task, Task]:
    count = Task(
        selftest_count.STAGE, {"selftest": SelftestSection(numbers=numbers, pause_seconds=0)}, command="cnf selftest"
    )
    return count, Task(selftest_sum.STAGE, {}, {"numbers": count}, alias="t/sum")


def test_second_run_is_a_hit(tmp_path: Path) -> None:
    """The same task twice runs once, and its alias points at the artifact."""
    runner, (_, total) = Runner(Store(tmp_path)), tasks()
    manifest = runner.run(total)
    assert manifest.checks == {"sum": 190}
    again = Runner(Store(tmp_path))
    seen = []
    again.on_step = seen.append
    assert again.run(total).key == manifest.key
    assert [s.state for s in seen] == ["hit", "hit"]
    assert Store(tmp_path).refs() == {"t/sum": manifest.key}


def test_plan_names_the_first_difference(tmp_path: Path) -> None:
    """A miss says which part of the key differs from the nearest artifact; what waits for it says so."""
    runner = Runner(Store(tmp_path))
    assert [s.why for s in runner.plan(tasks()[1])] == ["not made yet", "needs the result of selftest_count"]
    runner.run(tasks()[1])
    steps = runner.plan(tasks(30)[1])
    assert [s.state for s in steps] == ["miss", "waits"]
    assert steps[0].why == "selftest.numbers: 20 -> 30"
    assert [s.state for s in runner.plan(tasks()[1])] == ["hit", "hit"]


def test_equal_bytes_keep_downstream_cached(tmp_path: Path) -> None:
    """A forced rerun that yields equal bytes leaves the stage after it a hit."""
    runner = Runner(Store(tmp_path))
    runner.run(tasks()[1])
    Runner(Store(tmp_path)).run(tasks()[0], force=True)
    assert [s.state for s in runner.plan(tasks()[1])] == ["hit", "hit"]


def test_one_runner_never_mistakes_a_new_task_for_a_forgotten_one(tmp_path: Path) -> None:
    """Tasks made and dropped one after the other, which may lie at one address, each get their own artifact."""
    runner = Runner(Store(tmp_path))
    for numbers in range(2, 12):
        made = runner.run(Task(selftest_count.STAGE, {"selftest": SelftestSection(numbers=numbers, pause_seconds=0)}))
        assert made.sections["selftest"]["numbers"] == numbers


def test_no_deps_refuses_and_names_the_command(tmp_path: Path) -> None:
    """Without deps a missing input is an error that ends in the command to type."""
    with pytest.raises(ArtifactError) as caught:
        Runner(Store(tmp_path)).run(tasks()[1], deps=False)
    assert "cnf selftest" in (caught.value.hint or "")


def test_damage_becomes_a_miss_and_is_repaired(tmp_path: Path) -> None:
    """A shortened blob is a miss; running again repairs it."""
    store = Store(tmp_path)
    manifest = Runner(store).run(tasks()[1])
    blob = store.open(manifest.key, "sum.txt")
    blob.chmod(0o644)
    blob.write_bytes(b"")
    assert Runner(store).plan(tasks()[1])[-1].state == "miss"
    assert "damaged" in Runner(store).plan(tasks()[1])[-1].why
    Runner(store).run(tasks()[1])
    assert store.verify(deep=True).problems == []


def test_the_table_has_every_stage_once() -> None:
    """Each file in stages/ that makes a stage stands in the table, names are unique, and versions are positive."""
    files = [p.stem for p in Path(table.__file__).parent.glob("*.py") if "\nSTAGE = " in p.read_text()]
    assert sorted(files) == sorted(Path(inspect.getfile(one.run)).stem for one in table.STAGES)
    assert len({one.name for one in table.STAGES}) == len(table.STAGES)
    assert all(one.version >= 1 for one in table.STAGES)


def test_an_alias_that_moves_leaves_a_name_behind_and_gc_keeps_what_it_named(tmp_path: Path) -> None:
    """A second seed takes the name of the recipe; the first result keeps one of its own until it is untagged."""
    store = Store(tmp_path / "store")
    runner = Runner(store)
    first, second = runner.run(tasks(20)[1]), runner.run(tasks(30)[1])
    kept = f"t/sum-{first.key[:12]}"
    assert store.refs() == {"t/sum": second.key, kept: first.key}
    age(store.root, 30 * 86400)
    store.gc(delete=True)
    assert store.find(first.key) == first
    assert store.find(second.key) == second
    assert Runner(store).run(tasks(20)[1]) == first
    assert store.refs() == {"t/sum": first.key, kept: first.key, f"t/sum-{second.key[:12]}": second.key}
    for alias in (kept, "t/sum"):
        store.untag(alias)
    age(store.root, 30 * 86400)
    store.gc(delete=True)
    assert store.find(first.key) is None


def test_a_result_with_another_name_needs_none_of_its_own(tmp_path: Path) -> None:
    """What the user named by `--as` or `cnf tag` keeps that name and gets no second one."""
    store = Store(tmp_path / "store")
    first = Runner(store).run(tasks(20)[1])
    store.tag("mine", first.key)
    second = Runner(store).run(tasks(30)[1])
    assert store.refs() == {"t/sum": second.key, "mine": first.key}


def test_a_stage_does_not_build_upon_a_damaged_input(tmp_path: Path) -> None:
    """An input with one flipped bit, its size unchanged, is refused; then it is a miss, and all is made again."""
    store = Store(tmp_path)
    manifest = Runner(store).run(tasks()[0])
    blob = store.open(manifest.key, "numbers.txt")
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().replace(b"7", b"6", 1))
    with pytest.raises(ArtifactError, match="wrong content"):
        Runner(store).run(tasks()[1])
    assert Runner(store).run(tasks()[1]).checks == {"sum": 190}


def test_a_damaged_count_is_counted_again(tmp_path: Path) -> None:
    """A byte that is no text in the saved place of the selftest costs time, not the result."""
    store = Store(tmp_path)
    count = tasks()[0]
    (store.work(count.key({})) / "state").write_bytes(b"0\n1\n\x8a")
    made = Runner(store).run(count)
    assert store.open(made.key, "numbers.txt").read_text().split() == [str(number) for number in range(20)]
