"""One process works on a key: by a lock the kernel releases, or, where there are none, in a folder of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cnf_cli.errors import Busy
from cnf_cli.store import Store, disk

if TYPE_CHECKING:
    from filelock import BaseFileLock

HOLDER = "holder.json"
"""In the work folder: who works there, for those who wait."""
_LOOK_SECONDS = 0.2


@contextlib.contextmanager
def claim(
    store: Store,
    key: str,
    *,
    wait: bool = True,
    fresh: bool = False,
    waiting: Callable[[str], None] = lambda _: None,
) -> Iterator[Path]:
    """The work folder of the key, in which no other process works; `waiting` hears whom it has to wait for.

    Without `wait` another process at work is an error. Unless `fresh`, what an earlier run left is still in the folder.
    """
    with disk.explained("make a work folder", store.root):
        path = store.turn(key)
        locks = lockable(path.parent)
    with _locked(path, wait, waiting) if locks else contextlib.nullcontext():
        if fresh:
            store.drop_work(key)
        with _signed(store.work(key)) if locks else _own(store, key) as folder:
            yield folder


def kept(folder: Path) -> bool:
    """Whether there is anything in the claimed folder that a later run can go on from."""
    return any(path.name != HOLDER for path in folder.glob("*"))


def lockable(folder: Path) -> bool:
    """Whether the file system of this folder has locks that the kernel releases when their holder ends."""
    probe = folder / disk.temp_name()
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # nothing can be written here: the work itself will say why
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            probe.unlink()
    return True


def held(path: Path) -> bool:
    """Whether some process holds the lock; a file that is not there, nobody does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # nobody can say
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def _locked(path: Path, wait: bool, waiting: Callable[[str], None]) -> Iterator[None]:
    with disk.explained("lock a work folder", path.parent):
        lock = _lock(path, wait, waiting)
    try:
        yield
    finally:
        # Removed while it is still locked: whoever has opened it by then finds another file, or none, in its place.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


@contextlib.contextmanager
def _signed(folder: Path) -> Iterator[Path]:
    """Whoever waits can read who works here; a folder in which nothing was kept is gone afterwards."""
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    with contextlib.suppress(OSError):  # written in place: it is talk, and half of it does no harm
        (folder / HOLDER).write_text(json.dumps(who), encoding="utf-8")
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _lock(path: Path, wait: bool, waiting: Callable[[str], None]) -> BaseFileLock:
    from filelock import FileLock, Timeout

    told = ""
    while True:
        # A new one for every attempt: the file may have gone meanwhile, and with it what an old one would lock.
        lock = FileLock(path, mode=0o666, thread_local=False)  # so that users of one store wait for each other
        with contextlib.suppress(Timeout, FileNotFoundError):
            lock.acquire(blocking=False)
            if _same(lock, path):
                os.utime(path)  # one that was left over is old, and gc would take it away
                return lock
            lock.release()
        if held(path):
            who = _holder(path.with_suffix(""))
            if not wait:
                raise Busy(f"{who} works on this result", at=str(path), hint="leave out --no-wait to wait for it")
            if who != told:
                waiting(f"waiting for {who}")
                told = who
            time.sleep(_LOOK_SECONDS)


def _same(lock: BaseFileLock, path: Path) -> bool:
    """Whether what is locked is the file of that name: its last holder removed it, perhaps after this one opened it."""
    fd = lock._context.lock_file_fd
    try:
        return fd is not None and os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(folder: Path) -> str:
    try:
        who = json.loads(disk.read(folder / HOLDER, 4096))
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(float(who["since"])))
        return f"process {int(who['pid'])} on {str(who['host'])[:100]}, at work since {since}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"


@contextlib.contextmanager
def _own(store: Store, key: str) -> Iterator[Path]:
    """A folder of this process alone, with what an earlier run left if that ended well enough to give it back.

    A rename takes what was left and a rename gives it back: of two processes one gets it, without a lock.
    """
    while True:
        shared = store.work(key)
        own = shared.with_name(f"{key}.{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):  # another took it in this very moment
            shared.rename(own)
            break
    try:
        yield own
    finally:
        with contextlib.suppress(OSError):  # it was dropped, or another process has left its own there meanwhile
            own.rename(shared)
