"""Run a solver's own program: list arguments, a private folder, limits on time, CPU and everything it writes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cnf_cli.errors import MissingDependency
from cnf_cli.problems.distance import Array
from cnf_cli.solvers.base import SolverError

MOST_BYTES = 64 << 20
"""Largest file a program may write, the most it may write in all, and the most we read back."""
_LAST_BYTES = 1 << 14
"""So much of what a program printed is kept: its end."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Ran:
    """What a program that ended well left behind."""

    answer: str
    """The text of its answer's file."""
    said: str
    """The end of what it printed."""


def run(name: str, arguments: Sequence[str], files: Mapping[str, str], answer: str, seconds: float, how: str) -> Ran:
    """What program `name` wrote into the file `answer` of a fresh folder holding `files`, and what it said last."""
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(f"the program '{name}' is not on PATH", hint=how)
    with tempfile.TemporaryDirectory(prefix="cnf-solver-") as folder:
        for file, text in files.items():
            (Path(folder) / file).write_text(text, encoding="ascii")
        # Into a file, whose size is limited as that of every other: progress text would fill a pipe.
        with tempfile.TemporaryFile() as output:
            _wait(name, [path, *arguments], folder, seconds, output)
            output.seek(max(0, output.seek(0, 2) - _LAST_BYTES))
            said = output.read().decode("ascii", errors="replace")
        return Ran(_read(name, Path(folder) / answer), said)


def _wait(name: str, command: list[str], folder: str, seconds: float, output: IO[bytes]) -> None:
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: _limits(seconds),  # safe: workers have one thread
        start_new_session=True,
    )
    until = time.monotonic() + seconds
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_LOOK_SECONDS)
            if _written(folder) >= MOST_BYTES:
                raise SolverError(f"{name} wrote {MOST_BYTES >> 20} MB or more")
            if process.returncode is not None:
                break
            if time.monotonic() > until:
                raise SolverError(f"{name} did not finish in {seconds:g} s", hint="allow more time")
    finally:
        # A script that stands for the program has started others; what has left its session, the supervisor ends.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode < 0:
        raise SolverError(f"{name} was ended by {signal.Signals(-process.returncode).name}")
    if process.returncode:
        raise SolverError(f"{name} failed: exit code {process.returncode}")


def _written(folder: str) -> int:
    """Bytes in all files below the folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                total += Path(place, name).lstat().st_size
    return total


def _limits(seconds: float) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    # A program that outlives its parent still ends.
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds) + 1,) * 2)


def _read(name: str, path: Path) -> str:
    # The program may have left a link or a device in place of its answer.
    if path.is_symlink() or not path.is_file():
        raise SolverError(f"{name} wrote no answer")
    if path.stat().st_size >= MOST_BYTES:
        raise SolverError(f"{name} wrote {MOST_BYTES >> 20} MB or more")
    return path.read_text(encoding="ascii", errors="replace")


def whole_numbers(name: str, words: Sequence[str]) -> list[int]:
    """The words as integers."""
    try:
        return [int(w) for w in words]
    except ValueError as error:
        raise SolverError(f"{name} wrote an answer that is not a list of nodes") from error


def coordinate_section(points: Array) -> str:
    """TSPLIB's NODE_COORD_SECTION; `repr` keeps every digit."""
    rows = (f"{i} {_number(x)} {_number(y)}" for i, (x, y) in enumerate(points.tolist(), 1))
    return "NODE_COORD_SECTION\n" + "\n".join(rows) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
