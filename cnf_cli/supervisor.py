"""The program between `cnf` and what it does not trust: when `cnf` is done, or is no more, it ends all that is below.

    supervisor.py CONTROL STATUS FOLDER COMMAND...

makes FOLDER and runs COMMAND in a session of its own with TMPDIR=FOLDER. STATUS hears of both: a line when the folder
is there, and one with the command's wait status. When CONTROL is closed at its other end, by `cnf` or by the kernel
because `cnf` was killed, every descendant is ended, also one that has left its session or lost its parent, and the
folder is removed. Standard library only: it starts in a few milliseconds, for every worker.
"""

# pathlib takes as long to import as all the rest.
# ruff: noqa: PTH101, PTH102, PTH114, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from types import FrameType

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
_PATIENCE_SECONDS = 5.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    """Until the other end of CONTROL is closed, or a signal asks for it."""
    control, status, folder, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked: list[int] = []
    for signum in _ENDS:
        signal.signal(signum, lambda signum, _: asked.append(signum))
    signal.signal(signal.SIGCHLD, _noticed)
    _adopt_orphans()
    os.mkdir(folder, 0o700)
    os.write(status, b"made\n")
    child = _start(command, folder, (control, status, woken, wake))
    try:
        while not asked:
            ready = select.select([control, woken], [], [])[0]
            if control in ready:
                break
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            for pid, code in _reaped():
                if pid == child:
                    os.write(status, b"%d\n" % code)
    finally:
        _end_all(child)
        _remove(folder)


def _noticed(_signum: int, _frame: FrameType | None) -> None:
    """The wakeup pipe tells; a handler is what makes Python write to it."""


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _start(command: list[str], folder: str, own: tuple[int, ...]) -> int:
    """The child's process id; the pipes that were for it are its alone, so that their other ends notice its death."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for fd in own:
                os.close(fd)
            for signum in (
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGQUIT,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(signum, signal.SIG_DFL)
            os.environ["TMPDIR"] = folder
            os.execv(command[0], command)  # noqa: S606 - a list of arguments, no shell
        finally:
            os._exit(127)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    return pid


def _reaped() -> list[tuple[int, int]]:
    """(process, wait status) of every child that has ended."""
    out = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            out.append(found)
    return out


def _end_all(child: int) -> None:
    """No descendant is left; one that forks faster than it can be ended is stopped before."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        below = _descendants()
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, how)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # where there is no /proc
        _reaped()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        time.sleep(0.002)


def _descendants() -> list[int]:
    """Every process below this one, parents first."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                    # The name of a program may hold anything, also brackets and blanks.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                    children.setdefault(parent, []).append(int(name))
    out, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(0), [])
        out += below
        todo += below
    return out


def _remove(folder: str) -> None:
    """The folder is gone, whatever modes its parts were given."""
    import shutil

    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
