"""One worker process as its parent sees it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cnf_cli.solvers.base import SolverError
from cnf_cli.solvers.worker import MOST_REPLY
from cnf_cli.supervised import Supervised


class StartError(SolverError):
    """Worker processes do not start at all."""


class Worker:
    """A fresh interpreter below a supervisor: no inherited threads, no Ctrl-C of the terminal, nothing left behind.

    Not `multiprocessing.Process`: that runs the caller's main module again, and may not start inside a Dask worker.
    """

    def __init__(self) -> None:
        self.batch: deque[tuple[int, int]] = deque()
        self.deadline = float("inf")
        self.ready = False
        self.dead = False
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p or str(Path.cwd()) for p in sys.path),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-P", "-m", "cnf_cli.solvers.worker"]
        self.process = Supervised(command, "cnf-solver-", env, answers=True)
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
        code = self.process.wait() or 0
        if code >= 0:
            return f"crashed (exit code {code})"
        with suppress(ValueError):
            return f"crashed ({signal.Signals(-code).name})"
        return f"crashed (signal {-code})"

    def let_go(self) -> None:
        """The worker's end has begun; `kill` waits for it."""
        self.process.let_go()

    def kill(self) -> None:
        """End the worker and everything it started."""
        if self.dead:
            return
        self.dead = True
        self.process.close()
        self._tasks.close()
        self.replies.close()
