"""Damaged files for every reader: read, refused, or, where a library dies, its process dies and nothing else.

`make fuzz` runs it in full; `python -m tests.reliability.fuzz_readers --only csv --count 1000 --commands 0` a part.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from cnf_cli.errors import CnfError
from tests.helpers import cnf
from tests.reliability.fuzz_kit import Reader, dump, is_refusal, readers

SECONDS = 10
"""Of processor time for one input, after which it counts as one that hangs."""
MEMORY = 3 << 30
_OUTCOMES = ("read", "refused", "wrong", "hung")


def in_process(reader: Reader, folder: Path, first: int, count: int) -> dict[str, Any]:
    """How inputs `first` to `first + count` ended: each in a forked worker, which is replaced when it dies."""
    tally: Counter[str] = Counter()
    bad: list[int] = []
    k = first
    while k < first + count:
        state = mmap.mmap(-1, 8 * (1 + len(_OUTCOMES)))
        child = os.fork()
        if child == 0:
            _work(reader, folder, k, first + count, state)
        status = os.waitpid(child, 0)[1]
        at, *ended = struct.unpack(f"<{1 + len(_OUTCOMES)}q", state[:])
        tally.update(dict(zip(_OUTCOMES, ended, strict=True)))
        if os.waitstatus_to_exitcode(status) != 0:
            tally["died"] += 1
        if os.waitstatus_to_exitcode(status) != 0 or ended[2] or ended[3]:
            bad.append(at)
        k = at + 1
    return {**tally, "worst": bad[:20]}


def _work(reader: Reader, folder: Path, first: int, end: int, state: mmap.mmap) -> None:
    """In the child: one input after the other, the tally in shared memory; ends at the first that is wrong."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGVTALRM, _late)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    ended = [0] * len(_OUTCOMES)
    path = folder / f"input{reader.suffix}"
    for k in range(first, end):
        state[:] = struct.pack(f"<{1 + len(_OUTCOMES)}q", k, *ended)
        path.write_bytes(reader.input(k))
        outcome = _outcome(reader, path)
        ended[outcome] += 1
        state[:] = struct.pack(f"<{1 + len(_OUTCOMES)}q", k, *ended)
        if outcome > 1:
            break
    os._exit(0)


def _outcome(reader: Reader, path: Path) -> int:
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        reader.read(path)
    except CnfError:
        return 1
    except TimeoutError:
        return 3
    except BaseException:
        return 2
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return 0


def _late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError


def as_command(name: str, reader: Reader, folder: Path, first: int, count: int) -> dict[str, Any]:
    """How `cnf import FILE` ended on them: a result, or an error for the user, and nothing left behind."""
    tally: Counter[str] = Counter()
    bad: list[int] = []
    for k in range(first, first + count):
        path = folder / f"{name}{reader.suffix}"
        path.write_bytes(reader.input(k))
        done = cnf(*reader.command, str(path), store=folder / "store")
        if done.returncode == 0:
            tally["read"] += 1
        elif done.returncode in (2, 3) and is_refusal(done.stderr):
            tally["refused"] += 1
        else:
            tally["wrong"] += 1
            bad.append(k)
    left = [p.name for p in Path(tempfile.gettempdir()).glob("cnf-*")]
    return {**tally, "left": len(left), "worst": bad[:20]}


def run(count: int, commands: int, only: list[str], first: int = 0) -> dict[str, dict[str, Any]]:
    """The counts of every reader, in process and as commands, with the minutes it took."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    told: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        for temporary in ("tmp", "commands"):
            (folder / temporary).mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")  # of the commands too: nothing may be left in it
        every = readers(folder)
        for kind in only or list(every):
            started = time.monotonic()
            told[kind] = in_process(every[kind], folder, first, count) if count else {}
            told[kind]["minutes"] = round((time.monotonic() - started) / 60, 1)
            print(dump({kind: told[kind]}), flush=True)
        for kind in (only or list(every)) if commands else ():
            if kind != "solution":  # a tour without its instance is refused unread
                started = time.monotonic()
                one = f"{kind} as command"
                told[one] = as_command(kind, every[kind], folder / "commands", first, commands)
                told[one]["minutes"] = round((time.monotonic() - started) / 60, 1)
                print(dump({one: told[one]}), flush=True)
        if commands:
            assert cnf("verify", "--deep", store=folder / "commands" / "store").returncode in (0, 2)
    return told


def faults(told: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as promised."""
    out = []
    for kind, counted in told.items():
        tried = sum(counted.get(name, 0) for name in (*_OUTCOMES, "died"))
        allowed = 0.01 * tried if kind == "hdf5" else 0
        if counted.get("wrong") or counted.get("hung") or counted.get("left") or counted.get("died", 0) > allowed:
            out.append(f"{kind}: {counted}")
    return out


def main() -> None:
    """Prints the counts; exit code 1 if anything is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs of each reader, in process")
    parser.add_argument("--commands", type=int, default=1_000, help="inputs of each reader, through the command")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", action="append", default=[], help="only this reader; may be repeated")
    given = parser.parse_args()
    wrong = faults(run(given.count, given.commands, given.only, given.first))
    print("\n".join(wrong) or "as promised")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
