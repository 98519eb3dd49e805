"""Several processes on one recipe: one works, the others wait and find its result (promise 4)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.errors import Busy
from cnf_cli.pipeline.runner import Runner
from cnf_cli.pipeline.stage import Task
from cnf_cli.pipeline.turns import claim
from cnf_cli.stages import selftest_count
from cnf_cli.stages.selftest_count import SelftestSection
from cnf_cli.store import Store
from tests.conftest import ROOT
from tests.helpers import cnf, environment

TINY = ["--set", "policy.width=16", "--set", "policy.layers=1", "--set", "policy.heads=2"]
TINY += ["--set", "policy.feed_forward=16", "--set", "pretrain.batch_size=16", "--set", "pretrain.validation_count=0"]
PRETRAIN = ["pretrain", "tsp", "--n", "8", *TINY, "--set", "pretrain.instances=320", "--set"]
PRETRAIN += ["pretrain.epoch_instances=32"]


def begin(*args: str, store: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cnf_cli", *args]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**environment(store), **env}, cwd=ROOT, **pipes)


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    talk = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, talk, strict=True)]


def at_work(store: Path) -> int:
    """The process that works, once one does."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in store.glob("work/*/holder.json"):
            try:
                return int(json.loads(path.read_text())["pid"])
            except (OSError, ValueError):
                pass
        time.sleep(0.02)
    raise AssertionError("nobody works")


def same(store: Path, args: list[str], alone: Path) -> None:
    """Three processes at once end with 0 and the artifact that one alone makes, and leave nothing behind."""
    done = ended([begin(*args, store=store) for _ in range(3)])
    assert [code for code, _, _ in done] == [0, 0, 0], done
    key = Store(store).resolve(done[0][1].strip().splitlines()[-1])
    assert len({out.strip() for _, out, _ in done}) == 1
    assert cnf(*args, store=alone).returncode == 0
    one, other = Store(store).find(key), Store(alone).find(key)
    assert one is not None
    assert other is not None
    assert one.outputs == other.outputs
    assert Store(store).verify(deep=True).problems == []
    assert list(store.glob("work/*")) == []


def test_three_trainings_of_one_recipe_are_one(tmp_path: Path) -> None:
    """metrics.jsonl and the weights are those of a run alone, and nobody fails."""
    same(tmp_path / "a", PRETRAIN, tmp_path / "b")


def test_three_imports_of_one_file_are_one(tmp_path: Path) -> None:
    """Whoever comes second finds what the first has imported."""
    (tmp_path / "a.csv").write_text("x,y\n0,0\n0,1\n1,1\n1,0.5\n")
    same(tmp_path / "a", ["import", str(tmp_path / "a.csv")], tmp_path / "b")


def test_three_evaluations_are_one(tmp_path: Path) -> None:
    """Each prints the same table: the one that worked, and those that waited."""
    store = tmp_path / "a"
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "3", "-q", store=store).stdout.strip()
    args = ["evaluate", "--data", data, "--solver", "nearest", "--solver", "descent", "--csv"]
    done = ended([begin(*args, store=store) for _ in range(3)])
    assert [code for code, _, _ in done] == [0, 0, 0], done
    assert len({out for _, out, _ in done}) == 1
    assert list(store.glob("work/*")) == []


def test_three_labellings_on_a_cluster_are_one(tmp_path: Path) -> None:
    """Workers of a Dask cluster belong to the process that asked them, which is one."""
    pytest.importorskip("distributed")
    store = tmp_path / "a"
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "6", "-q", store=store).stdout.strip()
    args = ["label", data, "--solver", "nearest", "--executor", "dask", "--jobs", "1"]
    done = ended([begin(*args, store=store) for _ in range(2)])
    assert [code for code, _, _ in done] == [0, 0], done
    assert sum("found in the store" in err for _, _, err in done) == 1, done


def test_ranks_wait_together_for_another_process(tmp_path: Path) -> None:
    """Two ranks under torchrun, started while another process works on their recipe, find its result."""
    args = [*PRETRAIN[:-1], "pretrain.epoch_instances=320", "--set", "pretrain.instances=6400"]
    first = begin(*args, store=tmp_path)
    at_work(tmp_path)
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command = [sys.executable, *ranks, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "cnf_cli"]
    shared = ["--set", "problem.n=8", *args[4:]]  # torchrun reads --n itself
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    second = subprocess.Popen([*command, "pretrain", "tsp", *shared], env=environment(tmp_path), cwd=ROOT, **pipes)
    (code, out, _), (code2, out2, err2) = ended([first, second])
    assert (code, code2) == (0, 0), err2[-3000:]
    assert out.strip() == out2.strip()
    assert "waiting for process" in err2 or "found in the store" in err2
    assert list(tmp_path.glob("work/*")) == []


def test_who_is_waited_for_is_told_and_no_wait_gives_up(tmp_path: Path) -> None:
    """The line names process, host and time; --no-wait ends with 75; a waiting process obeys a signal at once."""
    slow = ["selftest", "--numbers", "500", "--pause", "0.05"]
    first = begin(*slow, store=tmp_path)
    try:
        pid = at_work(tmp_path)
        refused = cnf(*slow, "--no-wait", store=tmp_path)
        assert refused.returncode == 75, refused.stderr
        assert f"process {pid} on {os.uname().nodename}, at work since 20" in refused.stderr
        second = begin(*slow, store=tmp_path)
        assert second.stderr is not None
        line = next(line for line in second.stderr if "waiting" in line)
        assert f"waiting for process {pid} on" in line
        assert "--no-wait" in line
        second.send_signal(signal.SIGTERM)
        assert ended([second])[0][0] == 143
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


def test_a_killed_process_is_not_waited_for(tmp_path: Path) -> None:
    """The kernel releases the lock of a process that was killed; the next one goes on at once, where that one was."""
    slow = ["selftest", "--numbers", "120", "--pause", "0.02"]
    first = begin(*slow, store=tmp_path)
    at_work(tmp_path)
    while not list(tmp_path.glob("work/*/state")):
        time.sleep(0.02)
    first.kill()
    first.communicate()
    done = cnf(*slow, "--no-wait", store=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("work/*")) == []


def counting(numbers: int = 30, pause: float = 0.01) -> Task:
    return Task(selftest_count.STAGE, {"selftest": SelftestSection(numbers=numbers, pause_seconds=pause)})


def test_without_locks_each_works_in_a_folder_of_its_own_and_the_first_commit_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no locks two at once disturb each other in nothing, and one artifact is the result."""

    def refused(fd: int, what: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    seen: list[set[str]] = []
    made = []

    def work() -> None:
        runner = Runner(Store(tmp_path))
        runner.on_step = lambda _: seen.append({path.name for path in (tmp_path / "work").iterdir()})
        made.append(runner.run(counting()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(max(seen, key=len)) > 1, "they worked at the same time"
    assert len({manifest.digest for manifest in made}) == 1
    assert Store(tmp_path).verify(deep=True).problems == []
    assert list((tmp_path / "work").iterdir()) == []


def test_without_locks_an_interrupted_run_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept lies under the key again, for the next process to take over."""
    store, key = Store(tmp_path), "a" * 64
    monkeypatch.setattr("cnf_cli.pipeline.turns.lockable", lambda _: False)
    with claim(store, key) as folder:
        (folder / "state").write_text("half")
        assert folder.name != key
    with claim(store, key) as folder, claim(store, key) as other:
        assert (folder / "state").read_text() == "half"
        assert list(other.iterdir()) == []


def test_a_claim_is_exclusive_whatever_its_file_goes_through(tmp_path: Path) -> None:
    """Eight threads claim one key again and again, each removing the lock's file: never are two inside at once."""
    store, key = Store(tmp_path), "b" * 64
    inside, most, problems = [0], [0], []

    def work() -> None:
        try:
            for _ in range(25):
                with claim(store, key):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(0.001)
                    inside[0] -= 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert most == [1]
    assert list((tmp_path / "work").iterdir()) == []


def test_gc_takes_the_lock_of_a_killed_process_and_no_other(tmp_path: Path) -> None:
    """A lock's file without its work folder goes after a day; that of a process at work stays, however old."""
    store = Store(tmp_path)
    old = time.time() - 3 * 86400
    left, key = store.turn("d" * 64), "c" * 64
    left.touch()
    os.utime(left, (old, old))
    with claim(store, key):
        os.utime(store.turn(key), (old, old))
        assert [dead.path for dead in store.gc(delete=True).removed] == [left]
        assert {path.name for path in (tmp_path / "work").iterdir()} == {key, f"{key}.lock"}


def test_a_second_claim_is_refused_without_waiting(tmp_path: Path) -> None:
    """Busy, with the way out in its hint."""
    store = Store(tmp_path)
    second = claim(store, "e" * 64, wait=False)
    with claim(store, "e" * 64), pytest.raises(Busy, match=f"process {os.getpid()} on") as caught:
        second.__enter__()
    assert "--no-wait" in (caught.value.hint or "")
