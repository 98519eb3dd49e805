"""The few file-system steps a store is made of; every write to a store happens in this file."""
# Plain calls of `os`, so that a test can count them and make the k-th one fail.
# ruff: noqa: PTH102, PTH103, PTH104, PTH105, PTH106, PTH108, PTH112

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from cnf_cli.errors import ArtifactError
from cnf_cli.regular_files import FULL, no_space

CHUNK = 1 << 20
FAN = 256
TEMP = re.compile(r"\.[0-9a-f]{16}\.tmp")
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def chunks(path: Path, *, follow: bool = False) -> Iterator[bytes]:
    """The bytes of a regular file; links are refused unless `follow`, pipes and devices always."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        while block := os.read(fd, CHUNK):
            yield block
    finally:
        os.close(fd)


def read(path: Path, cap: int) -> bytes:
    """All of a small file; one larger than `cap` bytes is refused before it fills memory."""
    data = bytearray()
    for block in chunks(path):
        data += block
        if len(data) > cap:
            raise OSError(errno.EINVAL, f"larger than {cap} bytes", str(path))
    return bytes(data)


def size(path: Path) -> int | None:
    """The size of a regular file in a real folder, None for anything else."""
    try:
        found = os.lstat(path)
        real = stat.S_ISREG(found.st_mode) and stat.S_ISDIR(os.lstat(path.parent).st_mode)
    except (OSError, ValueError):
        return None
    return found.st_size if real else None


def walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every regular file below a folder, links not followed; what vanishes meanwhile is left out."""
    gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with explained("read the store", folder), gone, os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def sync(folder: Path) -> None:
    """The names in a folder are on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(fd)


def folder(root: Path, *parts: str) -> Path:
    """The folder root/part/part exists, and no part below the root is a link."""
    for part in parts:
        above, root = root, root / part
        try:
            os.mkdir(root)
            sync(above)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(root).st_mode):
                raise NotADirectoryError(
                    errno.ENOTDIR, "a file or a link where a folder should be", str(root)
                ) from None
    return root


def fan_out(root: Path, names: Iterable[str]) -> None:
    """The folders root/name/00 .. root/name/ff exist and are on disk."""
    if not os.path.isdir(root):
        os.makedirs(root, exist_ok=True)
        sync(root.parent)
    for name in names:
        top = folder(root, name)
        for n in range(FAN):
            with contextlib.suppress(FileExistsError):
                os.mkdir(top / f"{n:02x}")
        sync(top)


def temp_name() -> str:
    """A name nobody else uses, recognisable as left over (TEMP) if its writer dies."""
    return f".{secrets.token_hex(8)}.tmp"


def spool(place: Path, data: Iterable[bytes], mode: int = 0o444) -> Path:
    """A temporary file in `place` holds the data and is on disk; after a failure there is none."""
    temp = place / temp_name()
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            for block in data:
                view = memoryview(block)
                while view:
                    view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        _discard(temp)
        raise
    return temp


def publish(temp: Path, root: Path, *parts: str) -> Path:
    """The spooled file is root/part/part, durably, in place of what was there; after a failure the spool is gone."""
    try:
        target = folder(root, *parts[:-1]) / parts[-1]
        os.replace(temp, target)
    except BaseException:
        _discard(temp)
        raise
    sync(target.parent)
    return target


def _discard(temp: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temp)


def touch(path: Path) -> bool:
    """Whether the file exists; if so it is now young, which gc respects."""
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user's file in a shared store: there, only the time of writing protects it
        return os.path.lexists(path)
    return True


def set_aside(path: Path, name: str) -> Path:
    """The file has another name in the same folder, out of every reader's way."""
    aside = path.with_name(name)
    os.rename(path, aside)
    return aside


def remove(path: Path, cutoff: float) -> bool:
    """Whether the file was removed; one written or touched after `cutoff` stays.

    It is moved away first and looked at then, so a writer that renews it at the last moment wins.
    """
    try:
        if os.lstat(path).st_mtime > cutoff:
            return False
        aside = set_aside(path, temp_name())
        if os.lstat(aside).st_mtime > cutoff:
            os.rename(aside, path)
            return False
        os.unlink(aside)
    except FileNotFoundError:  # another gc was faster
        return False
    return True


def unlink(path: Path) -> None:
    """The file is gone, durably."""
    os.unlink(path)
    sync(path.parent)


def prune(path: Path) -> None:
    """Empty folders at and below `path` are gone."""
    for place, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)


def remove_tree(path: Path) -> None:
    """The folder is gone, and nothing a link in it points to was touched."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def explained(doing: str, root: Path, need: int = 0) -> Iterator[None]:
    """An OSError inside becomes an ArtifactError that says what to do; `need` is the bytes being written."""
    try:
        yield
    except OSError as error:
        at = str(error.filename or root)
        other = "use another store: `--store FOLDER` or CNF_STORE"
        if error.errno in FULL:
            hint = f"free some space (`cnf gc`, `cnf du`) or {other}"
            raise ArtifactError(no_space(root, doing, need), at=at, hint=hint) from error
        message, hint = (
            f"cannot {doing}: {error.strerror or error}",
            "`cnf verify` checks the store; then run the same command again",
        )
        if error.errno in _DENIED:
            hint = f"check who owns {root}, or {other}"
        raise ArtifactError(message, at=at, hint=hint) from error
