"""A run may be killed or interrupted at any time: nothing breaks, and the same command goes on (promises 1, 17)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cnf_cli.store import Store
from tests.conftest import ROOT
from tests.helpers import cnf, cnf_json, environment

CODE = "from cnf_cli.__main__ import main; main()"


def start(store: Path, numbers: int, pause: float) -> subprocess.Popen[str]:
    args = ["selftest", "--numbers", str(numbers), "--pause", str(pause)]
    command = [sys.executable, "-c", CODE, *args]
    return subprocess.Popen(
        command, env=environment(store), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def listens(pid: int) -> bool:
    """True once the program itself, not only its interpreter, handles signals."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def kill_at_random_points(store: Path, rounds: int, seed: int) -> int:
    """Start, kill -9 after a random time, check the store; returns how many runs were cut off."""
    rng, cut = random.Random(seed), 0
    for i in range(rounds):
        process = start(store, 40 + i, 0.002)
        try:
            process.communicate(timeout=0.1 + rng.random() * 0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            cut += 1
        assert Store(store).verify(deep=True).problems == []
        if i % 10 == 9:
            assert cnf_json("selftest", "--numbers", str(40 + i), "--pause", "0.002", store=store)["checks"]["sum"] > 0
    return cut


def test_killed_runs_leave_a_sound_store(tmp_path: Path) -> None:
    """kill -9 at random points: the store verifies and the same command completes (20 times; 200 in the slow run)."""
    assert kill_at_random_points(tmp_path, 20, seed=1) > 3


@pytest.mark.slow
def test_killed_runs_leave_a_sound_store_200(tmp_path: Path) -> None:
    """The same, 200 times."""
    assert kill_at_random_points(tmp_path, 200, seed=2) > 30


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_are_polite(tmp_path: Path, signum: int, code: int) -> None:
    """A signal at random times: exit code 128+n long before the work is done, state saved, no traceback."""
    rng, begun = random.Random(signum), set[Path]()
    for i in range(10):
        process = start(tmp_path, 100_000 + i, 0.002)
        # Half of the signals come while the program is starting, half while the stage is at work.
        while not listens(process.pid) or (i % 2 and len(list(tmp_path.glob("work/*"))) <= len(begun)):
            time.sleep(0.01)
        begun = set(tmp_path.glob("work/*"))
        time.sleep(rng.random() * 0.7)
        process.send_signal(signum)
        _, talk = process.communicate(timeout=60)
        assert process.returncode == code, talk
        assert "Traceback" not in talk
    states = [p for p in tmp_path.glob("work/*/state") if len(p.read_text().splitlines()) > 1]
    assert states, "at least one of the runs had begun and saved its state"


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    """After an interrupt the same command starts from the saved state, not from nothing."""
    process = start(tmp_path, 400, 0.005)
    while not list(tmp_path.glob("work/*/state")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=10)
    assert "run the same command again to continue" in talk
    saved = len(next(tmp_path.glob("work/*/state")).read_text().splitlines())
    assert saved >= 10
    done = cnf("selftest", "--numbers", "400", "--pause", "0.005", store=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("work/*/state")), "the work folder of a finished run is gone"


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    """Two signals in a row stop a run that does not reach a safe point."""
    process = start(tmp_path, 10, 30)
    while not list(tmp_path.glob("work/*")):
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None, "the first signal waits for a safe point"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
