"""Ctrl-C once stops politely with the state saved; twice stops at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cnf_cli.errors import CnfError


class Interrupted(CnfError):
    """The user, or the system, asked to stop."""

    def __init__(self, signum: int, saved: bool = False) -> None:
        hint = "the state is saved: run the same command again to continue." if saved else None
        super().__init__("interrupted" if signum == signal.SIGINT else "terminated", hint=hint)
        self.code = 128 + signum


_asked: int | None = None
_polite = 0


def install() -> None:
    """From now on SIGINT and SIGTERM raise `Interrupted`, or, inside `polite`, wait for the next safe point."""
    signal.signal(signal.SIGINT, _handle)
    signal.signal(signal.SIGTERM, _handle)


def stop_asked() -> int | None:
    """The signal that asked for a polite stop, if one did."""
    return _asked


@contextmanager
def polite() -> Iterator[None]:
    """Inside, the first signal only sets `stop_asked`; the code must look at it often and save its state."""
    global _asked, _polite
    _polite += 1
    try:
        yield
    finally:
        _polite -= 1
        if not _polite:
            _asked = None


def _handle(signum: int, _frame: FrameType | None) -> None:
    global _asked
    if not _polite:
        raise Interrupted(signum)
    if _asked is not None:
        os._exit(128 + signum)
    _asked = signum
    sys.stderr.write("\nstopping after this step, saving the state; once more to stop at once\n")
