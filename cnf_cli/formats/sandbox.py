"""Reads a user's files in a child process with bounded memory, time and file size; the parent never parses them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Dataset
from cnf_cli.formats.files import file_size
from cnf_cli.formats.legacy import Checkpoint, Untold
from cnf_cli.regular_files import blocks, explained, write_atomic
from cnf_cli.supervised import Supervised

MEMORY = 2 << 30
SECONDS = 120
_FILE_SIZE = 4 << 30
_REPORTS = ("current", "error.json")
_ROOM = 8192
"""Bytes of each report, set apart before anything is read."""
_ROOT = Path(__file__).resolve().parents[2]
# What no reader of files needs. The child refuses these itself, as a second line behind the readers' own checks.
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.",
    "socket.",
    "pty.",
    "ftplib.",
)
_WRITES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")


def read_safely(
    paths: Sequence[Path],
    problem: str | None = None,
    capacity: float | None = None,
    solutions: Path | None = None,
    said: Untold = Untold(),  # noqa: B008 - it is frozen
    *,
    digests: Sequence[str] | None = None,
    order: bool = False,
    memory: int = MEMORY,
    seconds: int = SECONDS,
) -> Dataset | Checkpoint:
    """`read_any` in a child process; a crash, a timeout or too much memory is a `DataError` naming the file.

    With `digests` (sha256 of every file, then of the solutions) other bytes than those are not read.
    """
    request = {
        "paths": [str(p) for p in paths],
        "problem": problem,
        "capacity": capacity,
        "solutions": None if solutions is None else str(solutions),
        "said": vars(said),
        "digests": digests,
        "order": order,
        "memory": memory,
        "seconds": seconds,
    }
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with Supervised([sys.executable, "-P", "-m", "cnf_cli.formats.sandbox"], "cnf-import-", env) as child:
        for name in _REPORTS:
            write_atomic(child.folder / name, b" " * _ROOM)
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(json.dumps(request).encode())
        code = child.wait(seconds + 60)
        return _result(child.folder, code, str(paths[0]) if paths else "", seconds)


def _result(folder: Path, code: int | None, first: str, seconds: int) -> Dataset | Checkpoint:
    at = os.fsdecode((folder / "current").read_bytes()[:4096].rstrip(b" ")) or first
    error = (folder / "error.json").read_bytes()[: 1 << 20].strip()
    if code == 2 and error:
        fields = json.loads(error)
        raise DataError(fields["message"], at=fields["at"] or at, hint=fields["hint"])
    if code == 0 and (folder / "result.h5").exists():
        return dataset.load(folder / "result.h5")
    if code == 0 and (folder / "result.safetensors").exists():
        return _load_checkpoint(folder / "result.safetensors")
    if code is None or code == -signal.SIGXCPU:
        raise DataError(f"reading {Path(at).name} takes longer than {seconds} s", at=at, hint="split the file")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise DataError(
        f"reading {Path(at).name} crashed its reader ({how})", at=at, hint="the file is damaged; nothing was imported"
    )


_KEYS = ("problem", "policy", "sha256", "known")
_LISTS = ("left_out", "told")


def _save_checkpoint(path: Path, found: Checkpoint) -> None:
    from cnf_cli.formats import checkpoint

    meta = {"kind": "import", "models": len(found.models), **{key: list(getattr(found, key)) for key in _LISTS}}
    tensors = {f"{i}.{name}": t for i, model in enumerate(found.models) for name, t in model.items()}
    tensors |= {f"router.{name}": t for name, t in (found.router or {}).items()}
    checkpoint.save(path, tensors, {**meta, **{key: getattr(found, key) for key in _KEYS}})


def _load_checkpoint(path: Path) -> Checkpoint:
    from cnf_cli.formats import checkpoint

    try:
        tensors, meta = checkpoint.load(path)
        models: list[dict[str, Any]] = [{} for _ in range(int(meta["models"]))]
        router: dict[str, Any] = {}
        for name, tensor in tensors.items():
            index, _, rest = name.partition(".")
            (router if index == "router" else models[int(index)])[rest] = tensor
        plain: dict[str, Any] = {key: meta[key] for key in _KEYS} | {key: tuple(meta[key]) for key in _LISTS}
        return Checkpoint(models=tuple(models), router=router or None, **plain)
    except (ArtifactError, KeyError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"the import failed: {error}", at=str(path)) from None


def main() -> int:
    """The child: limits first, then the readers, then one file with the result or the error."""
    folder = Path(os.environ["TMPDIR"]).resolve()
    request = json.load(sys.stdin)
    sys.dont_write_bytecode = True
    from cnf_cli.formats import read

    paths = [Path(p) for p in request["paths"]]
    solutions = None if request["solutions"] is None else Path(request["solutions"])
    if any(_needs_torch(p) for p in (*paths, *filter(None, [solutions]))):
        import torch  # noqa: F401 - its size is not the file's fault: load it before the limit is set
    _limit(request["memory"], request["seconds"])
    sys.addaudithook(_guard(folder))

    current = os.open(folder / "current", os.O_WRONLY)
    asked: dict[Path, Path] = {}

    def on_file(path: Path) -> None:
        name = os.fsencode(asked.get(path, path))[:_ROOM]
        os.pwrite(current, name + b" " * (_ROOM - len(name)), 0)

    try:
        files = read.expand(paths)[0] + [path for path in (solutions,) if path]
        copies = _copies(files, folder, request["digests"], on_file)
        asked |= zip(copies, files, strict=True)
        given = copies.pop() if solutions else None
        said = Untold(**request["said"])
        found = read.read_any(
            copies, request["problem"], request["capacity"], given, said, on_file, order=request["order"]
        )
        if isinstance(found, Dataset):
            dataset.save(folder / "result.h5", found)
        else:
            _save_checkpoint(folder / "result.safetensors", found)
    except (Exception, RecursionError) as error:
        return _report(folder, error, request["memory"], asked)
    return 0


def _copies(
    files: Sequence[Path], folder: Path, digests: Sequence[str] | None, on_file: Callable[[Path], None]
) -> list[Path]:
    """What is read: copies that nobody changes meanwhile, each in a folder of its own, under the file's own name."""
    if digests is not None and len(digests) != len(files):
        raise DataError("the files changed while they were imported", hint="run the same command again")
    out = []
    for k, file in enumerate(files):
        on_file(file)
        file_size(file)
        place = folder / "files" / f"{k:06d}"
        place.mkdir(parents=True)
        digest = hashlib.sha256()
        with explained(place / file.name, file.stat().st_size), (place / file.name).open("xb") as copy:
            for block in _read(file):
                digest.update(block)
                copy.write(block)
        if digests is not None and digest.hexdigest() != digests[k]:
            raise DataError(
                f"{file.name} changed while it was imported",
                at=str(file),
                hint="run it again when the file is complete",
            )
        out.append(place / file.name)
    return out


def _read(file: Path) -> Iterator[bytes]:
    try:
        yield from blocks(file)
    except OSError as error:
        raise DataError(
            f"cannot read {file.name}: {error.strerror}", at=str(file), hint="check its mode bits"
        ) from None


def _report(folder: Path, error: Exception, memory: int, asked: Mapping[Path, Path]) -> int:
    fields: dict[str, str | None] = {
        "message": getattr(error, "message", None)
        or f"the file cannot be read ({type(error).__name__}: {error})"[:500],
        "at": getattr(error, "at", None),
        "hint": getattr(error, "hint", None),
    }
    if isinstance(error, MemoryError):
        fields["message"] = f"reading it needs more than {memory >> 20} MB"
        fields["hint"] = "split the file"
    for key, text in fields.items():
        for copy, file in asked.items() if text else ():
            fields[key] = str(fields[key]).replace(str(copy), str(file))
    told = json.dumps(fields).encode()
    with (folder / "error.json").open("r+b") as out:  # its room was set apart: the disk may be full now
        out.write(told.ljust(_ROOM))
    return 2


def _needs_torch(path: Path) -> bool:
    if path.is_dir():
        return any(_needs_torch(inside) for inside in path.glob("*.pkl") if not inside.is_dir())
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(65536)
    return head.startswith((b"PK", b"\x80")) and (
        head.startswith(b"PK") or b"torch" in head or b"\x8a\nl\xfc" in head[:8]
    )


def _limit(memory: int, seconds: int) -> None:
    import resource

    def lower(kind: int, soft: int, hard: int) -> None:
        top = resource.getrlimit(kind)[1]  # a limit the user has set already stays
        top = hard if top == resource.RLIM_INFINITY else min(top, hard)
        resource.setrlimit(kind, (min(soft, top), top))

    lower(resource.RLIMIT_CORE, 0, 0)
    lower(resource.RLIMIT_CPU, seconds, seconds + 5)
    lower(resource.RLIMIT_FSIZE, _FILE_SIZE, _FILE_SIZE)
    usage = Path("/proc/self/statm")
    if usage.exists():  # elsewhere the limit on address space is not kept by the system
        used = int(usage.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        lower(resource.RLIMIT_AS, used + memory, used + memory)


def _guard(folder: Path) -> Any:
    """An audit hook that lets the process write inside `folder` only, start nothing and connect to nothing."""
    inside = str(folder) + os.sep

    def allowed(path: object) -> bool:
        return isinstance(path, int) or os.path.realpath(os.fsdecode(path)).startswith(inside)  # type: ignore[arg-type]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(f"{event} is not for a reader of files")
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and path not in (os.devnull,) and not allowed(path):
                raise PermissionError("a reader of files writes nowhere else")
        elif event in _WRITES and not allowed(args[0]):
            raise PermissionError("a reader of files changes nothing elsewhere")

    return hook


if __name__ == "__main__":
    sys.exit(main())
