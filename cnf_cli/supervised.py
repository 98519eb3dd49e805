"""Commands that leave nothing behind, however this process ends: see supervisor.py."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cnf_cli.errors import CnfError

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PATIENCE_SECONDS = 10.0


class Supervised:
    """A command with a folder of its own (its TMPDIR): when this is closed, or this process dies, both are gone.

    With the command goes everything it started, also what has left its session. No signal of the terminal reaches it.
    """

    def __init__(self, command: Sequence[str], prefix: str, env: Mapping[str, str], *, answers: bool = False) -> None:
        """`command` begins with a full path; with `answers` its stdout can be read here."""
        self._folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
        theirs, self._control = os.pipe()
        self._status, told = os.pipe()
        try:
            self._process: subprocess.Popen[Any] = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(theirs), str(told), str(self._folder), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs, told),
                start_new_session=True,
                env=env,
            )
        finally:
            os.close(theirs)
            os.close(told)
        self.pid = self._process.pid
        self._said: list[bytes] = []
        self._code: int | None = None
        self._closed = False

    @property
    def folder(self) -> Path:
        """Where the command writes; it is there until `close`."""
        self._hear(1, None)
        if not self._said:
            place = self._folder.parent
            raise CnfError(f"no folder can be made in {place}", at=str(place), hint="free some space there")
        return self._folder

    @property
    def stdin(self) -> IO[bytes]:
        """What the command reads."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """What the command writes."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self, seconds: float | None = None) -> int | None:
        """The command's exit code, or minus the signal that ended it; None when it still runs after so long."""
        if self._code is None and self._hear(2, seconds):
            # Without a word the supervisor itself was killed, and with it what it watched.
            self._code = os.waitstatus_to_exitcode(int(self._said[1])) if len(self._said) > 1 else -signal.SIGKILL
        return self._code

    def _hear(self, lines: int, seconds: float | None) -> bool:
        """Whether the supervisor has said so many lines, or will say no more."""
        until = None if seconds is None else time.monotonic() + seconds
        while len(self._said) < lines:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                return False
            text = os.read(self._status, 64)  # a few bytes, which a pipe delivers whole
            if not text:
                return True
            self._said += text.splitlines()
        return True

    def let_go(self) -> None:
        """The end has begun; `close` waits for it."""
        if not self._closed:
            self._closed = True
            os.close(self._control)

    def close(self) -> None:
        """The command, all it started and its folder are gone."""
        self.let_go()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
