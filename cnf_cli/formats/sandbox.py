"""Reads a user's files in a child process with bounded memory, time and file size; the parent never parses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Dataset
from cnf_cli.formats.legacy import Checkpoint

MEMORY = 2 << 30
SECONDS = 120
_FILE_SIZE = 4 << 30
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
    heads: int | None = None,
    *,
    memory: int = MEMORY,
    seconds: int = SECONDS,
) -> Dataset | Checkpoint:
    """`read_any` in a child process; a crash, a timeout or too much memory is a `DataError` naming the file."""
    with tempfile.TemporaryDirectory(prefix="cnf-import-") as folder:
        request = {
            "paths": [str(p) for p in paths],
            "problem": problem,
            "capacity": capacity,
            "solutions": None if solutions is None else str(solutions),
            "heads": heads,
            "memory": memory,
            "seconds": seconds,
        }
        code = _run(request, Path(folder), seconds)
        return _result(Path(folder), code, str(paths[0]) if paths else "", seconds)


def _run(request: dict[str, Any], folder: Path, seconds: int) -> int | None:
    """The child's exit code, None if it had to be killed for taking too long."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "cnf_cli.formats.sandbox", str(folder)]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module, no shell
            command,
            input=json.dumps(request).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            timeout=seconds + 60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def _result(folder: Path, code: int | None, first: str, seconds: int) -> Dataset | Checkpoint:
    current = folder / "current"
    at = os.fsdecode(current.read_bytes()[:4096]) if current.exists() else first
    error = folder / "error.json"
    if code == 2 and error.exists() and error.stat().st_size < 1 << 20:
        fields = json.loads(error.read_text(encoding="utf-8"))
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


def _save_checkpoint(path: Path, found: Checkpoint) -> None:
    from cnf_cli.formats import checkpoint

    keys = ("problem", "width", "layers", "heads", "feed_forward", "norm", "sha256", "known")
    meta = {"kind": "import", "models": len(found.models), "left_out": list(found.left_out)}
    tensors = {f"{i}.{name}": t for i, model in enumerate(found.models) for name, t in model.items()}
    checkpoint.save(path, tensors, {**meta, **{key: getattr(found, key) for key in keys}})


def _load_checkpoint(path: Path) -> Checkpoint:
    from cnf_cli.formats import checkpoint

    try:
        tensors, meta = checkpoint.load(path)
        models: list[dict[str, Any]] = [{} for _ in range(int(meta["models"]))]
        for name, tensor in tensors.items():
            index, _, rest = name.partition(".")
            models[int(index)][rest] = tensor
        keys = ("problem", "width", "layers", "heads", "feed_forward", "norm", "sha256", "known")
        return Checkpoint(models=tuple(models), left_out=tuple(meta["left_out"]), **{key: meta[key] for key in keys})
    except (ArtifactError, KeyError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"the import failed: {error}", at=str(path)) from None


def main() -> int:
    """The child: limits first, then the readers, then one file with the result or the error."""
    folder = Path(sys.argv[1]).resolve()
    request = json.load(sys.stdin)
    sys.dont_write_bytecode = True
    from cnf_cli.formats import read

    paths = [Path(p) for p in request["paths"]]
    solutions = None if request["solutions"] is None else Path(request["solutions"])
    if any(_needs_torch(p) for p in (*paths, *filter(None, [solutions]))):
        import torch  # noqa: F401 - its size is not the file's fault: load it before the limit is set
    _limit(request["memory"], request["seconds"])
    sys.addaudithook(_guard(folder))

    current = os.open(folder / "current", os.O_WRONLY | os.O_CREAT, 0o600)

    def on_file(path: Path) -> None:
        name = os.fsencode(path)
        os.pwrite(current, name, 0)
        os.ftruncate(current, len(name))

    try:
        found = read.read_any(paths, request["problem"], request["capacity"], solutions, request["heads"], on_file)
        if isinstance(found, Dataset):
            dataset.save(folder / "result.h5", found)
        else:
            _save_checkpoint(folder / "result.safetensors", found)
    except (Exception, RecursionError) as error:
        return _report(folder, error, request["memory"])
    return 0


def _report(folder: Path, error: Exception, memory: int) -> int:
    fields: dict[str, str | None] = {
        "message": getattr(error, "message", None)
        or f"the file cannot be read ({type(error).__name__}: {error})"[:500],
        "at": getattr(error, "at", None),
        "hint": getattr(error, "hint", None),
    }
    if isinstance(error, MemoryError):
        fields["message"] = f"reading it needs more than {memory >> 20} MB"
        fields["hint"] = "split the file"
    (folder / "error.json").write_text(json.dumps(fields), encoding="utf-8")
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
