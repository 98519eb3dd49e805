"""One worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cnf_cli.solvers.base import SolverError
from cnf_cli.solvers.worker import MOST_REPLY


class StartError(SolverError):
    """Worker processes do not start at all."""


class Worker:
    """A fresh interpreter in a session of its own: no inherited threads, no Ctrl-C of the terminal, killed as a group.

    Not `multiprocessing.Process`: that runs the caller's main module again, and may not start inside a Dask worker.
    """

    def __init__(self) -> None:
        self.batch: deque[tuple[int, int]] = deque()
        self.deadline = float("inf")
        self.ready = False
        self.dead = False
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cnf_cli.solvers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
                "OMP_NUM_THREADS": "1",
            },
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._tasks = Connection(os.dup(self.process.stdin.fileno()), readable=False)
        self.replies = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdin.close()
        self.process.stdout.close()

    def give(self, batch: Sequence[tuple[int, int]], tasks: list[Any]) -> None:
        """Send work; a worker that has just died is noticed when it is listened to."""
        self.batch.extend(batch)
        with suppress(BrokenPipeError, OSError):
            self._tasks.send(tasks)

    def receive(self) -> dict[str, Any]:
        """The next message; `EOFError` when the worker has ended."""
        message = json.loads(self.replies.recv_bytes(MOST_REPLY))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        self.ready = True
        return message

    def obituary(self) -> str:
        """How the worker ended."""
        code = self.process.wait()
        if code >= 0:
            return f"crashed (exit code {code})"
        with suppress(ValueError):
            return f"crashed ({signal.Signals(-code).name})"
        return f"crashed (signal {-code})"

    def kill(self) -> None:
        """End the worker and everything it started."""
        if self.dead:
            return
        self.dead = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._tasks.close()
        self.replies.close()
