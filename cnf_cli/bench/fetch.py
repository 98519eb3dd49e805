"""Get a library's files from the network or a folder: bounded, verified by content, nothing half-done kept."""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

from cnf_cli.bench.libraries import Library, digest
from cnf_cli.bench.sources import files_in, read_files
from cnf_cli.errors import CnfError, DataError, RecipeError
from cnf_cli.formats.files import read_bytes
from cnf_cli.formats.item import Item
from cnf_cli.regular_files import write_atomic

MAX_BYTES = 8 << 20
"""The largest file of these libraries has 1.1 MB."""
_STALL_SECONDS = 10.0
_GIVE_UP = 2
"""So many failures to connect in a row, and an address is not asked for the rest."""


class Unreachable(Exception):
    """An address does not answer at all."""


def addresses_of(library: Library, given: str | None) -> tuple[str, ...]:
    """The addresses to ask in turn; {name} stands for the instance."""
    if given is None:
        return library.addresses
    if "{name}" in given:
        return (given,)
    base = given.rstrip("/")
    return (f"{base}/{{name}}{library.suffix}", f"{base}/{{name}}{library.suffix}.gz")


def fetch(
    library: Library,
    names: Sequence[str],
    folder: Path,
    given: str | None = None,
    *,
    seconds: float = 60.0,
    on_file: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Item], dict[str, str]]:
    """(instances that are the library's own, name -> why not for the rest); verified files stay in `folder`.

    `given` is a folder or an address in place of the library's; `seconds` is the limit for one file.
    """
    good = _verified({name: path for name, path in files_in(folder, library).items() if name in names}, library)[0]
    why: dict[str, str] = {}
    if given is not None and urllib.parse.urlsplit(given).scheme in ("", "file") and Path(given).is_dir():
        there = files_in(Path(given), library)
        copied = {name: _copy(there[name], folder) for name in names if name in there and name not in good}
        found, why = _verified(copied, library)
        good |= found
        return good, {n: why.get(n, "not in the folder") for n in names if n not in good}
    for address in addresses_of(library, given):
        left = [name for name in names if name not in good]
        got, wrong = _download(library, left, address, folder, seconds)
        found, false = _verified(got, library)
        good |= found
        why |= {name: f"{_host(address)}: {text}" for name, text in {**wrong, **false}.items()}
        for name in found:
            on_file(name)
    return good, {name: why.get(name, "no address has it") for name in names if name not in good}


def _download(
    library: Library, names: Sequence[str], address: str, folder: Path, seconds: float
) -> tuple[dict[str, Path], dict[str, str]]:
    got: dict[str, Path] = {}
    wrong: dict[str, str] = {}
    silent = 0
    for name in names:
        if silent >= _GIVE_UP:
            wrong[name] = "the address does not answer"
            continue
        try:
            data = download(address.replace("{name}", urllib.parse.quote(name)), seconds)
            silent = 0
        except Unreachable as error:
            wrong[name], silent = str(error), silent + 1
            continue
        except DataError as error:
            wrong[name], silent = error.message, 0
            continue
        write_atomic(folder / f"{name}{library.suffix}", data)
        got[name] = folder / f"{name}{library.suffix}"
    return got, wrong


def download(url: str, seconds: float = 60.0, most: int = MAX_BYTES) -> bytes:
    """The file at `url`, unpacked if it is gzipped, with Unix line ends; a `DataError` says what is wrong with it."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise RecipeError(f"'{url}' is not an http address", hint="--from takes an http(s) address or a folder")
    deadline = time.monotonic() + seconds
    request = urllib.request.Request(url, headers={"User-Agent": "cnf"})  # noqa: S310 - http and https only
    parts: list[bytes] = []
    try:
        with urllib.request.urlopen(request, timeout=min(_STALL_SECONDS, seconds)) as answer:  # noqa: S310
            declared = answer.headers.get("Content-Length", "")
            if declared.isdigit() and int(declared) > most:
                raise DataError(f"the file declares {declared} bytes, more than {most}")
            size = 0
            while part := answer.read1(65536):
                size += len(part)
                if size > most:
                    raise DataError(f"the file has more than {most} bytes")
                if time.monotonic() > deadline:
                    raise DataError(f"the file takes longer than {seconds:g} s")
                parts.append(part)
            if declared.isdigit() and size < int(declared):
                raise DataError(f"the answer was cut off after {size} of {declared} bytes")
    except urllib.error.HTTPError as error:
        raise DataError(f"the server answers {error.code} {error.reason}") from None
    except TimeoutError:
        raise Unreachable(f"no answer within {min(_STALL_SECONDS, seconds):g} s") from None
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise Unreachable(f"{getattr(error, 'reason', error)}") from None
    return _plain(b"".join(parts), most).replace(b"\r\n", b"\n")


def _plain(data: bytes, most: int) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        out = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise DataError(f"the gzip file is damaged: {error}") from None
    if len(out) > most:
        raise DataError(f"the file unpacks to more than {most} bytes")
    if not unpacker.eof:
        raise DataError("the gzip file is cut off")
    return out


def _copy(source: Path, folder: Path) -> Path:
    data = read_bytes(source, MAX_BYTES).replace(b"\r\n", b"\n")
    write_atomic(folder / source.name, data)
    return folder / source.name


def _verified(files: dict[str, Path], library: Library) -> tuple[dict[str, Item], dict[str, str]]:
    """The files that hold the library's own instances; the others are removed and explained."""
    good: dict[str, Item] = {}
    why: dict[str, str] = {}
    for items, error in _read(list(files.values()), library):
        if error is not None:
            why[items[0].stem] = error  # type: ignore[union-attr]
            continue
        for item in items:
            assert isinstance(item, Item)
            if digest(item) == library.known[item.name].sha256:
                good[item.name] = item
            else:
                why[item.name] = "this is another instance: its sha256 is not the library's"
    for name in why:
        files[name].unlink(missing_ok=True)
    return good, why


def _read(paths: list[Path], library: Library) -> list[tuple[list[Item] | list[Path], str | None]]:
    """All files in one child process; one by one when one of them is not readable, so that it is found."""
    if not paths:
        return []
    try:
        return [(read_files(paths, library), None)]
    except CnfError as error:
        if len(paths) == 1:
            return [(paths, error.message)]
    half = len(paths) // 2
    return [*_read(paths[:half], library), *_read(paths[half:], library)]


def _host(address: str) -> str:
    return urllib.parse.urlsplit(address).netloc or address
