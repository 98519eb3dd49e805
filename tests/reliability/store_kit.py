"""Shared by the store's reliability tests: small artifacts, faulty system calls, other users."""

from __future__ import annotations

import os
import random
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.store import Input, Manifest, Store, disk, make_key

CALLS = ("open", "read", "write", "fsync", "replace", "rename", "unlink", "mkdir", "makedirs", "rmdir", "utime")


def content(n: int) -> dict[str, bytes]:
    """The files of demo artifact n: the second is shared by every third artifact."""
    big = random.Random(n).randbytes(1 + n % 7 * 1000)
    return {"a.bin": big, "sub/b.txt": f"shared {n % 3}\n".encode() * 5}


def key_of(n: int, inputs: dict[str, Manifest] | None = None) -> str:
    return make_key("demo", 1, {"n": n}, {name: m.digest for name, m in (inputs or {}).items()})


def write_sources(n: int, source: Path) -> dict[str, Path]:
    files = {name: source / f"{n}" / name for name in content(n)}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(n)[name])
    return files


def put(store: Store, n: int, source: Path, inputs: dict[str, Manifest] | None = None) -> Manifest:
    """Artifact n is committed from files written below `source`."""
    files = write_sources(n, source)
    links = {name: Input(m.key, m.digest) for name, m in (inputs or {}).items()}
    about: dict[str, Any] = {"sections": {"n": n}, "provenance": {"who": "test"}, "checks": {"ok": True}}
    return store.commit(key_of(n, inputs), files, stage="demo", version=1, inputs=links, **about)


def whole(store: Store, n: int) -> bool:
    """Whether artifact n is found and its bytes are exactly right."""
    found = store.find(key_of(n))
    return found is not None and all(
        store.open(found.key, name).read_bytes() == data for name, data in content(n).items()
    )


def temps(root: Path) -> list[Path]:
    return [path for path, _ in disk.walk(root) if disk.TEMP.fullmatch(path.name)]


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def age(root: Path, seconds: float = 10 * 86400) -> None:
    """Everything in the store looks this old."""
    then = time.time() - seconds
    for path in root.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


class Calls:
    """Stands in for `os` inside store/disk.py: `before(number, name, args)` runs ahead of every counted call."""

    def __init__(self, before: Callable[[int, str, tuple[Any, ...]], None], also: tuple[str, ...] = ()) -> None:
        self.before, self.count, self.counted = before, 0, CALLS + also

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.counted:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            self.before(self.count, name, args)
            return real(*args, **kwargs)

        return call


@contextmanager
def calls(
    before: Callable[[int, str, tuple[Any, ...]], None],
    also: tuple[str, ...] = (),
    modules: tuple[Any, ...] = (disk,),
) -> Iterator[Calls]:
    proxy = Calls(before, also)
    for module in modules:
        module.os = proxy
    try:
        yield proxy
    finally:
        for module in modules:
            module.os = os


@contextmanager
def tmpfs(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small disk of its own at `folder`; the test skips where nobody may mount one."""
    folder.mkdir()
    size = f"size={megabytes}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Killed(BaseException):
    """The process is dead: no later call may have an effect."""


def fail_at(k: int, error: BaseException, forever: bool = False) -> Callable[[int, str, tuple[Any, ...]], None]:
    """The k-th call raises; with `forever` every later one too, as after kill -9."""

    def before(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == k or (forever and number > k):
            raise error

    return before


def as_nobody(place: Path, check: Callable[[], None]) -> None:
    """Run a check, on files below `place`, as a user without privileges (in a child, if the tests run as root)."""
    place.chmod(0o755)
    if os.geteuid() != 0:
        check()
        return
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            check()
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if said:
        pytest.fail(said)
