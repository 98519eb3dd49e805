"""A tar archive as a list of where each file's bytes are: plain files and folders, no links, devices or holes."""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

BLOCK = 512
MAX_MEMBERS = 200_000
_MAX_NAME = 4096
_MAX_HEADER = 1 << 16
_OCTAL = re.compile(rb" *([0-7]{1,12})[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,6}) ([^=\n]{1,100})=")
_FILE, _FOLDER, _PAX, _GLOBAL, _LONG = (b"0", b"\0", b"7"), b"5", b"x", b"g", b"L"


class Span(NamedTuple):
    """Where a file's bytes lie in the archive."""

    start: int
    size: int


def index(file: BinaryIO) -> dict[str, Span]:
    """Name -> place of every file in an uncompressed tar; ValueError for anything damaged or of another kind."""
    found: dict[str, Span] = {}
    at, name, end = 0, "", os.fstat(file.fileno()).st_size
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ValueError("this is not a regular file")
    for _ in range(2 * MAX_MEMBERS):
        header = _read(file, at, BLOCK)
        if not any(header):
            return found
        kind, size = header[156:157], _number(header[124:136])
        _check(header)
        start, at = at + BLOCK, at + BLOCK + -(-size // BLOCK) * BLOCK
        if start + size > end:
            raise ValueError("the archive is cut off")
        if kind in (_PAX, _GLOBAL, _LONG):
            extra = _read(file, start, _bounded(size))
            name = extra.rstrip(b"\0").decode() if kind == _LONG else _path(extra) or name
        elif kind in _FILE:
            own = name or _name(header)
            if own in found:
                raise ValueError(f"{own[:80]!r} is in the archive twice")
            found[own], name = Span(start, size), ""
        elif kind == _FOLDER:
            name = ""
        else:
            raise ValueError(f"a member of type {kind!r} has no place in an export: it holds plain files only")
    raise ValueError(f"the archive has more than {MAX_MEMBERS} files")


def header(name: str, size: int) -> bytes:
    """What stands before a file's bytes; the same for the same name and size, whoever writes it and when."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """What fills a file's last block."""
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def blocks(path: Path, span: Span, chunk: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of one file in the archive."""
    with path.open("rb") as file:
        file.seek(span.start)
        left = span.size
        while left > 0:
            block = file.read(min(chunk, left))
            if not block:
                raise ValueError("the archive is cut off")
            left -= len(block)
            yield block


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("the archive is cut off")
    return data


def _number(field: bytes) -> int:
    found = _OCTAL.fullmatch(field)
    if found is None:
        raise ValueError("a size is damaged, or larger than 8 GB")
    return int(found[1], 8)


def _check(block: bytes) -> None:
    if sum(block) - sum(block[148:156]) + 8 * 32 != _number(block[148:156]):
        raise ValueError("a header of the archive is damaged")


def _bounded(size: int) -> int:
    if size > _MAX_HEADER:
        raise ValueError("a header of the archive is too long")
    return size


def _name(block: bytes) -> str:
    first, last = (block[a:b].split(b"\0")[0].decode() for a, b in ((345, 500), (0, 100)))
    return _plain(f"{first}/{last}" if first and block[257:262] == b"ustar" else last)


def _path(records: bytes) -> str:
    """The name that a pax header gives the next file, '' if it gives none."""
    at, name = 0, ""
    while at < len(records):
        found = _RECORD.match(records, at)
        if found is None or int(found[1]) <= found.end() - at or at + int(found[1]) > len(records):
            raise ValueError("a header of the archive is damaged")
        value, at = records[found.end() : at + int(found[1]) - 1], at + int(found[1])
        if found[2] == b"path":
            name = _plain(value.decode())
        elif found[2] == b"size" or found[2].startswith(b"GNU.sparse"):
            raise ValueError("files of more than 8 GB, or with holes, have no place in an export")
    return name


def _plain(name: str) -> str:
    if not name or len(name) > _MAX_NAME:
        raise ValueError("a name in the archive is empty or too long")
    return name.removeprefix("./")
