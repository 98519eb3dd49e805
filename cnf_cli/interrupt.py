"""Ctrl-C once stops, with the state saved where there is one; twice stops at once. No signal is forgotten."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS = 0.25
_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated: the terminal is gone"}


class Interrupted(BaseException):
    """The user, or the system, asked to stop. Not an `Exception`: whoever handles errors must not take it for one."""

    def __init__(self, signum: int, saved: bool = False) -> None:
        self.signum, self.at = signum, None
        self.message, self.code = _NAMES.get(signal.Signals(signum), "stopped"), 128 + signum
        self.hint: str | None = None
        if saved:
            self.keep()
        super().__init__(self.message)

    def keep(self) -> None:
        """What was done is not lost: the reader is told so."""
        self.hint = "the state is saved: run the same command again to continue."


_asked: int | None = None
_polite = 0


def install() -> None:
    """From now on a signal raises `Interrupted`, or, inside `polite`, waits for the next safe point."""
    sys.unraisablehook = _silent
    signal.signal(signal.SIGALRM, _again)
    for signum in _NAMES:
        # `nohup cnf ...` asks to go on without the terminal.
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _handle)


def uninstall() -> None:
    """From now on a signal ends the process at once, as before `install`, and nothing is raised any more."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for signum in _NAMES:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


def stop_asked() -> int | None:
    """The signal that asked for a stop, if one did."""
    return _asked


@contextmanager
def polite() -> Iterator[None]:
    """Inside, the first signal only sets `stop_asked`; the code must look at it often and save its state.

    One that came after the last look is raised at the end: by then all that was to be saved is saved.
    """
    global _polite
    _polite += 1
    try:
        yield
    finally:
        _polite -= 1
    if _asked is not None and not _polite:
        raise Interrupted(_asked, saved=True)


def _handle(signum: int, _frame: FrameType | None) -> None:
    global _asked
    if _asked is not None:
        os._exit(128 + signum)
    _asked = signum
    if not _polite:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS, _AGAIN_SECONDS)
        raise Interrupted(signum)
    # Not sys.stderr: the signal may have come in the middle of a line that it is writing.
    os.write(2, b"\nstopping after this step, saving the state; once more to stop at once\n")


def _again(_signum: int, _frame: FrameType | None) -> None:
    """An `Interrupted` that got lost, as in a destructor or in a library that ignores all errors, is raised again."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    # One on its way is left in peace, with whatever cleans up for it; where the state is saved, a safe point comes.
    if error is None and _asked is not None and not _polite:
        raise Interrupted(_asked)


def _silent(what: UnraisableHookArgs) -> None:
    """An `Interrupted` raised where nobody can catch it is no news."""
    if not isinstance(what.exc_value, Interrupted):
        sys.__unraisablehook__(what)
