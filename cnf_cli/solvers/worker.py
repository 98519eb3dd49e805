"""A worker process: reads instances from stdin, answers on stdout, one small JSON message per instance."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

MOST_REPLY = 16 << 20
"""Bytes of one reply; a worker whose memory a library has damaged could send anything."""


def main() -> None:
    """Serve until the parent closes the pipe."""
    _die_with_parent()
    tasks = Connection(os.dup(0), writable=False)
    replies = Connection(os.dup(1), readable=False)
    # Third-party code prints; stdout is the pipe, so it gets another one.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    _send(replies, {"ready": os.getpid()})
    with suppress(EOFError, BrokenPipeError):
        while True:
            for index, instance, kind, params in tasks.recv():
                _send(replies, _solve(replies, index, instance, kind, params))


def _solve(replies: Connection, index: int, instance: Any, kind: str, params: dict[str, Any]) -> dict[str, Any]:
    from cnf_cli.errors import CnfError, DataError
    from cnf_cli.solvers.run import solve_one, solver

    try:
        solver(kind)  # imported before the clock starts
        _send(replies, {"began": index})
        answer = solve_one(instance, kind, params)
    except DataError as error:
        return {
            "index": index,
            "error": error.message,
            "final": type(instance).__name__ == "Instance" and _bad(instance),
        }
    except CnfError as error:
        return {"index": index, "error": error.message}
    except MemoryError:
        return {"index": index, "error": f"{kind} ran out of memory"}
    except Exception as error:
        return {"index": index, "error": f"{kind} raised {type(error).__name__}: {error}"[:500]}
    return {"index": index, "answer": {**vars(answer), "tour": list(answer.tour)}}


def _bad(instance: Any) -> bool:
    """Whether the instance itself is wrong, so that asking another solver is no use."""
    from cnf_cli.errors import DataError

    try:
        instance.check()
    except DataError:
        return True
    return False


def _send(replies: Connection, message: dict[str, Any]) -> None:
    replies.send_bytes(json.dumps(message).encode())


def _die_with_parent() -> None:
    """A killed parent leaves no solver running for hours."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()
