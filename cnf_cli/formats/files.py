"""What a user's file may be: regular, of bounded size, text or bytes."""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

from cnf_cli.errors import DataError

MAX_BINARY = 2 << 30
MAX_TEXT = 256 << 20
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def file_size(path: Path, limit: int = MAX_BINARY) -> int:
    """The size of a regular file; a missing file, a pipe, a device or a file above `limit` bytes is refused."""
    try:
        info = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path.name}: {error.strerror}", at=str(path), hint="check the path") from None
    if not stat.S_ISREG(info.st_mode):
        raise DataError(f"{path.name} is not a regular file", at=str(path), hint="copy it to a plain file first")
    if info.st_size > limit:
        raise DataError(
            f"{path.name} has {info.st_size} bytes, more than the {limit} this format is read up to",
            at=str(path),
            hint="split it into smaller files and import them together",
        )
    return info.st_size


def read_bytes(path: Path, limit: int = MAX_BINARY) -> bytes:
    """The whole content of a regular file of at most `limit` bytes."""
    file_size(path, limit)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(
            f"cannot read {path.name}: {error.strerror}", at=str(path), hint="check its mode bits"
        ) from None
    if len(data) > limit:  # grew between the two calls
        raise DataError(f"{path.name} grew while it was read", at=str(path), hint="try again when it is complete")
    return data


def stem(path: Path) -> str:
    """The file's name without its suffix, as text that can be stored."""
    return path.stem.encode("utf-8", "replace").decode("utf-8")


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """The file as text; a byte order mark and bytes outside ASCII never stop it, a NUL byte does."""
    text = decoded(read_bytes(path, limit))
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(
            f"{path.name} is not a text file", at=f"{path}:{line}", hint="`cnf import` names what a file really is"
        )
    return text


def decoded(data: bytes, *, whole: bool = True) -> str:
    """Bytes as text: as their byte order mark says, else UTF-8, else Latin-1; not `whole` may end inside a letter."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return codecs.getincrementaldecoder(encoding)("replace").decode(data[len(mark) :], final=whole)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return data.decode("latin-1")
