"""One regular file: read up to a limit, replaced as a whole or not at all, added to; what a full disk is called."""
# Plain calls of `os`, so that a test can count them and make the k-th one fail.
# ruff: noqa: PTH105, PTH108

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cnf_cli.errors import DataError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHUNK = 1 << 20


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file; a pipe or a device is an OSError before a byte of it is read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        while block := os.read(fd, _CHUNK):
            yield block
    finally:
        os.close(fd)


def read(path: Path, cap: int) -> bytes:
    """All of a regular file; one larger than `cap` bytes is an OSError before it fills memory."""
    data = bytearray()
    for block in blocks(path):
        data += block
        if len(data) > cap:
            raise OSError(errno.EFBIG, f"larger than {cap} bytes", str(path))
    return bytes(data)


def no_space(place: Path, doing: str, need: int) -> str:
    """What a full disk is called: its mount, and the bytes that were to be written."""
    return f"no space left on {mount_of(place)}: {doing} needs {need:,} bytes"


def mount_of(place: Path) -> Path:
    """Where the disk that holds a place is mounted."""
    mount = place.absolute()
    while not os.path.ismount(mount) and mount != mount.parent:
        mount = mount.parent
    return mount


def refuse_taken(paths: Sequence[Path], *, force: bool) -> None:
    """Nothing is at these paths, or the user said that it may be replaced."""
    taken = [str(path) for path in paths if os.path.lexists(path)]
    if taken and not force:
        what = "a file" if len(taken) == 1 else f"{len(taken)} of the files"
        raise DataError(
            f"{what} to be written exist{'s' if len(taken) == 1 else ''} already",
            at=taken[0],
            hint="nothing was changed; choose another name or folder, or overwrite with --force",
        )


def write_atomic(path: Path, data: bytes) -> None:
    """The file holds exactly `data` and is on disk, in place of what was there; after a failure nothing changed."""
    path = Path(path)
    temp = path.with_name(f".{secrets.token_hex(8)}.tmp")
    with explained(path, len(data)):
        try:
            _spool(temp, data)
            os.replace(temp, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise
        _sync(path.parent)


def add_line(path: Path, line: str) -> None:
    """The file ends with this line; a line cut short by a full disk is taken back."""
    data = f"{line}\n".encode()
    with explained(path, len(data)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            before = os.fstat(fd).st_size
            try:
                _write(fd, data)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, before)
                raise
        finally:
            os.close(fd)


@contextlib.contextmanager
def explained(path: Path, need: int) -> Iterator[None]:
    """An OSError inside becomes a DataError that says what could not be written, and to which disk."""
    try:
        yield
    except OSError as error:
        hint = "check the folder and who may write to it"
        message = f"cannot write {path.name}: {error.strerror or error}"
        if error.errno in FULL:
            message, hint = no_space(path.parent, path.name, need), "free some space, then run the same command again"
        raise DataError(message, at=str(path), hint=hint) from error


def _spool(temp: Path, data: bytes) -> None:
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        _write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(fd)
