"""However `cnf` ends, no process and no folder below it is left (promise 26)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.solvers.base import Instance, SolverError
from cnf_cli.solvers.run import solve_one
from cnf_cli.supervised import Supervised
from tests.conftest import ROOT
from tests.helpers import cnf, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by way of /proc")


def marked(mark: str) -> list[int]:
    """Every process whose environment holds the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def soon(true: object) -> bool:
    """Whether it becomes true; the patience is a bound for broken code, not a promise."""
    until = time.monotonic() + 60
    while not true() and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(true())  # type: ignore[operator]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_hostile_solver(tmp_path: Path, signum: signal.Signals) -> None:
    """Sleepers, in sessions of their own and orphaned, end with `cnf`, and the solver's folder is gone."""
    temp, ready = tmp_path / "temp", tmp_path / "ready"
    temp.mkdir()
    store = tmp_path / "store"
    data = cnf("data", "generate", "tsp", "--n", "9", "--count", "2", "-q", store=store).stdout.strip()
    mark = f"HOSTILE_READY={ready}"
    args = ["label", data, "--solver", "tests.reliability.hostile_solver", "--jobs", "1"]
    env = {**environment(store), "TMPDIR": str(temp), "HOSTILE_READY": str(ready)}
    command = [sys.executable, "-m", "cnf_cli", *args]
    process = subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert soon(ready.exists)
    assert soon(lambda: len(marked(mark)) >= 5), "cnf, the supervisor, the worker and most of three sleepers"
    process.send_signal(signum)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == (-9 if signum == signal.SIGKILL else 128 + signum), talk
    assert "Traceback" not in talk
    assert soon(lambda: not marked(mark))
    assert soon(lambda: not list(temp.iterdir()))


def test_a_killed_import_leaves_neither_reader_nor_folder(tmp_path: Path) -> None:
    """kill -9 in the middle of reading: the reader ends and its folder goes."""
    temp = tmp_path / "temp"
    temp.mkdir()
    big = tmp_path / "big.csv"
    big.write_text("x,y\n" + "0.25,0.75\n" * 3_000_000)
    env = {**environment(tmp_path / "store"), "TMPDIR": str(temp)}
    command = [sys.executable, "-m", "cnf_cli", "import", str(big)]
    process = subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.DEVNULL)
    assert soon(lambda: list(temp.glob("cnf-import-*/current")))
    process.kill()
    process.wait()
    assert soon(lambda: not marked(f"TMPDIR={temp}"))
    assert soon(lambda: not list(temp.iterdir()))


def test_the_end_of_a_command_is_told_as_it_was(tmp_path: Path) -> None:
    """Exit codes and signals come through the supervisor; its folder lives until it is closed."""
    for code, said in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV)):
        with Supervised([sys.executable, "-c", code], "cnf-test-", os.environ) as child:
            assert child.wait() == said
            assert child.folder.is_dir()
            assert stat.S_IMODE(child.folder.stat().st_mode) == 0o700
        assert not child.folder.exists()


def test_closing_ends_what_still_runs(tmp_path: Path) -> None:
    """A command that ignores signals, and its child in another session, end with `close`."""
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)\n"
    code += "exec(sys.argv[1])"
    sleeps = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(1000)"
    mark = f"CNF_TEST_MARK={tmp_path}"
    env = {**os.environ, "CNF_TEST_MARK": str(tmp_path)}
    with Supervised([sys.executable, "-c", code, sleeps], "cnf-test-", env) as child:
        assert soon(lambda: len(marked(mark)) == 3)
        assert child.wait(0) is None
    assert marked(mark) == []


def fake(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "concorde"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_program_may_not_fill_the_disk_with_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight files of 60 MB, each below the limit for one, are too much together."""
    fake(tmp_path, "for k in range(8):\n open(str(k), 'wb').write(bytes(60 << 20))", monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    case = Instance("tsp", xy=np.random.default_rng(0).random((14, 2)))
    with pytest.raises(SolverError, match="64 MB or more"):
        solve_one(case, "concorde", {"seconds": 60})


def test_a_late_program_ends_with_those_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in place of the program: when its time is over, the program it started is ended too."""
    pid = tmp_path / "pid"
    body = "import subprocess, sys, time, pathlib\n"
    body += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
    body += f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\ntime.sleep(1000)"
    fake(tmp_path, body, monkeypatch)
    case = Instance("tsp", xy=np.random.default_rng(0).random((14, 2)))
    with pytest.raises(SolverError, match="did not finish"):
        solve_one(case, "concorde", {"seconds": 1})
    assert pid.exists()
    status = Path(f"/proc/{pid.read_text()}/stat")
    # Nobody here waits for it, so that it may stay as a zombie.
    assert soon(lambda: not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z")
