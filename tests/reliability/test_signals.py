"""A signal stops a command with the right exit code and without a traceback, wherever it strikes (promise 17)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers import environment
from tests.reliability.moments import interpreters_own, listens

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def begin(command: list[str], store: Path, **options: object) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(store), cwd=ROOT, **pipes, **options)  # type: ignore[call-overload]


def program(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    """`cnf ls` with another body, once that says by `begun()` that it has begun to wait."""
    code = "import sys, time; sys.argv = ['cnf', 'ls']\nimport cnf_cli.store as s\nfrom cnf_cli import interrupt\n"
    code += "def begun():\n    print('begun', flush=True)\n    time.sleep(600)\ndef body(*_):\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )
    code += "\n    return iter(())\ns.Store.manifests = body\nfrom cnf_cli.__main__ import main; main()"
    process = begin([sys.executable, "-c", code], tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def stopped(process: subprocess.Popen[str], signum: int) -> tuple[int, str, str]:
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(("signum", "code"), CODES)
def test_each_signal_has_its_code(tmp_path: Path, signum: int, code: int) -> None:
    """INT, TERM and HUP end a waiting command with 130, 143 and 129, and one line about it."""
    found, _, talk = stopped(program(tmp_path, "begun()"), signum)
    assert found == code
    assert talk.startswith("error: ")
    assert "Traceback" not in talk


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    begun()\nexcept BaseException:\n    pass\ntime.sleep(600)",
        "class A:\n    def __del__(self):\n        begun()\nA()\ntime.sleep(600)",
        "try:\n    begun()\nexcept BaseException:\n    raise ValueError('half done') from None",
    ],
    ids=["ignored", "destructor", "another-error"],
)
def test_a_signal_is_never_lost(tmp_path: Path, body: str) -> None:
    """Raised where a library ignores all errors, in a destructor, or turned into another error: it ends the command."""
    found, _, talk = stopped(program(tmp_path, body), signal.SIGTERM)
    assert found == 143, talk
    assert talk == "error: terminated\n"


def test_a_command_that_was_asked_to_stop_never_exits_with_0(tmp_path: Path) -> None:
    """Even where the signal was ignored and the command went on to its end at once."""
    body = "try:\n    begun()\nexcept BaseException:\n    pass"
    found, _, talk = stopped(program(tmp_path, body), signal.SIGTERM)
    assert found == 143
    assert talk.endswith("error: terminated\n")


def test_a_signal_after_the_last_safe_point_counts(tmp_path: Path) -> None:
    """Where nothing looks at it any more, it is raised when the polite part is over."""
    body = "with interrupt.polite():\n    print('begun', flush=True)\n    time.sleep(2)\nprint('went on', flush=True)"
    found, out, talk = stopped(program(tmp_path, body), signal.SIGINT)
    assert found == 130
    assert "went on" not in out
    assert "run the same command again" in talk


def test_cleaning_up_is_not_disturbed(tmp_path: Path) -> None:
    """The signal is not raised a second time into what cleans up after the first."""
    body = "try:\n    begun()\nfinally:\n    time.sleep(1.5)\n    print('clean', flush=True)"
    found, out, _ = stopped(program(tmp_path, body), signal.SIGINT)
    assert (found, out) == (130, "clean\n")


def test_nohup_goes_on(tmp_path: Path) -> None:
    """A command started to ignore HUP does so."""
    process = begin(["nohup", sys.executable, "-m", "cnf_cli", "selftest", "--numbers", "60"], tmp_path)
    while not listens(process.pid) and process.poll() is None:
        time.sleep(0.01)
    found, _, talk = stopped(process, signal.SIGHUP)
    assert found == 0, talk


@pytest.mark.parametrize(("signum", "code"), CODES)
def test_an_import_stops_without_blaming_the_file(tmp_path: Path, signum: int, code: int) -> None:
    """Ctrl-C reaches the whole group of processes, as from a terminal: the file is not called damaged."""
    big, temp = tmp_path / "big.csv", tmp_path / "temp"
    big.write_text("x,y\n" + "0.25,0.75\n" * 3_000_000)
    temp.mkdir()
    command = [sys.executable, "-m", "cnf_cli", "import", str(big)]
    env = {**environment(tmp_path / "store"), "TMPDIR": str(temp)}
    process = subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 60
    while not list(temp.glob("cnf-import-*/current")) and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, signum)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == code, talk
    assert "damaged" not in talk
    assert not list(tmp_path.glob("store/stages/*/*"))
    assert not list(tmp_path.glob("store/work/*"))


def test_signals_while_the_program_starts(tmp_path: Path) -> None:
    """At twelve moments of the start-up: the code of the signal, and no traceback of ours."""
    rng = random.Random(4)
    for k in range(12):
        signum, code = CODES[k % 3]
        process = begin([sys.executable, "-m", "cnf_cli", "recipe", "schema"], tmp_path)
        time.sleep(rng.random() * 0.5)
        found, _, talk = stopped(process, signum)
        if found != 0 and not interpreters_own(talk):
            assert (found if found > 0 else 128 - found) == code, talk
            assert "Traceback" not in talk
