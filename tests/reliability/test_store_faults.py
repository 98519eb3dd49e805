"""Promises 1-3: no kill, no failing system call and no short write leaves a manifest that is not true."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.errors import ArtifactError
from cnf_cli.store import Store, disk
from tests.reliability.store_kit import (
    Killed,
    Manifest,
    calls,
    fail_at,
    key_of,
    put,
    snapshot,
    temps,
    whole,
    write_sources,
)

FAULTS: dict[str, Callable[[], BaseException]] = {
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "EACCES": lambda: PermissionError(errno.EACCES, "Permission denied"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "kill": Killed,
}


@pytest.fixture(autouse=True)
def _few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking 512 folders after every fault would take most of the time."""
    monkeypatch.setattr(disk, "FAN", 4)


def sound(store: Store) -> None:
    report = Store(store.root).verify(deep=True)
    assert report.ok, report.problems


def test_a_new_store_has_all_its_folders(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 2 x 256 folders exist after the first write, so later writes sync only one."""
    monkeypatch.setattr(disk, "FAN", 256)
    store = Store(place / "store")
    put(store, 1, place / "source")
    assert all((store.root / top / f"{n:02x}").is_dir() for top in ("objects", "stages") for n in range(256))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call_of_commit_and_tag_leaves_the_store_sound(place: Path, fault: str) -> None:
    """For every k: failing the k-th call gives a clean error, no false manifest, no leftover; a rerun completes."""
    store, source = Store(place / "store"), place / "source"
    put(store, 10_000, source)
    for k in range(1, 500):
        write_sources(k, source)
        before = snapshot(source / f"{k}")
        try:
            with calls(fail_at(k, FAULTS[fault](), forever=fault == "kill")) as seen:
                key = put(store, k, source).key
                store.tag("run/last", key)
        except (ArtifactError, KeyboardInterrupt, Killed):
            assert seen.count >= k  # a bare OSError would fail the test: users get an explanation
        sound(store)
        assert snapshot(source / f"{k}") == before
        assert store.find(key_of(k)) is None or whole(store, k)
        assert fault == "kill" or not temps(store.root)
        if seen.count < k:
            break
        store.tag("run/last", put(store, k, source).key)
        assert whole(store, k)
        assert store.refs()["run/last"] == key_of(k)
    assert 25 < k < 500, "every call was tried"
    assert len(list(store.manifests())) == k + 1


@pytest.mark.parametrize("fault", ["EIO", "kill"])
def test_a_fault_while_a_store_is_created_is_made_good_by_the_next_commit(place: Path, fault: str) -> None:
    """Half-made stores are completed, whichever call of the first commit failed."""
    source = place / "source"
    with calls(lambda *_: None) as seen:
        put(Store(place / "all"), 1, source)
    total = seen.count
    assert total > 40
    for k in range(1, total + 1):
        store = Store(place / f"{k}")
        try:
            with calls(fail_at(k, FAULTS[fault](), forever=fault == "kill")):
                put(store, 1, source)
        except (ArtifactError, Killed):
            pass
        sound(store)
        put(store, 1, source)
        assert whole(store, 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call_of_a_repair_keeps_the_store_sound(place: Path, fault: str) -> None:
    """Committing over a damaged artifact, interrupted anywhere, ends in a miss or repaired, never served wrong."""
    store, source = Store(place / "store"), place / "source"
    key = put(store, 3, source).key
    for k in range(1, 500):
        store.manifest(key).unlink()
        store.manifest(key).write_bytes(b"{}")
        try:
            with calls(fail_at(k, FAULTS[fault](), forever=fault == "kill")) as seen:
                put(store, 3, source)
        except (ArtifactError, KeyboardInterrupt, Killed):
            pass
        assert store.find(key) is None or whole(store, 3)
        put(store, 3, source)
        assert whole(store, 3)
        sound(store)
        if seen.count < k:
            break
    assert 15 < k < 500


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call_of_gc_untag_and_export_loses_nothing_alive(place: Path, fault: str) -> None:
    """What an alias reaches survives a gc that fails at any call; a failed export leaves no partial file."""
    store, source = Store(place / "store"), place / "source"
    alive = put(store, 1, source)
    store.tag("keep", alive.key)
    for k in range(1, 500):
        for n in (2, 3):
            store.tag(f"gone/{n}", put(store, n, source).key)
        out = place / f"out{k}"
        try:
            with calls(fail_at(k, FAULTS[fault](), forever=fault == "kill")) as seen:
                store.untag("gone/2")
                store.untag("gone/3")
                store.gc(delete=True, grace=0)
                store.export(alive.key, out)
        except (ArtifactError, KeyboardInterrupt, Killed):
            pass
        assert whole(store, 1)
        sound(store)
        for name in ("a.bin", "sub/b.txt"):
            assert not (out / name).exists() or (out / name).read_bytes() == store.open(alive.key, name).read_bytes()
        assert fault == "kill" or not temps(out)
        if seen.count < k:
            break
    assert 20 < k < 500
    assert store.find(key_of(2)) is None, "with no fault, gc did collect"


def test_writes_are_ordered_for_power_loss(place: Path) -> None:
    """write < fsync(file) < rename < fsync(folder) for each file, and all blobs < manifest < alias."""
    store, source = Store(place / "store"), place / "source"
    put(store, 1, source)
    log: list[tuple[str, Any]] = []
    names: dict[int, str] = {}

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in ("open", "write", "fsync", "replace"):
                return real

            def call(*args: Any, **kwargs: Any) -> Any:
                result = real(*args, **kwargs)
                if name == "open":
                    names[result] = str(args[0])
                elif name == "replace":
                    log.append(("replace", (str(args[0]), str(args[1]))))
                else:
                    log.append((name, names[args[0]]))
                return result

            return call

    disk.os = Recorder()
    try:
        made = put(store, 2, source)
        store.tag("latest", made.key)
    finally:
        disk.os = os
    renames = [(i, *args) for i, (what, args) in enumerate(log) if what == "replace"]
    order = [Path(target) for _, _, target in renames]
    assert set(order[:2]) == {store.blob(out.sha256) for out in made.outputs.values()}
    assert order[2:] == [store.manifest(made.key), store.root / "refs" / "latest"]
    ends = [i for i, _, _ in renames[1:]] + [len(log)]
    for (at, temp, target), end in zip(renames, ends, strict=True):
        writes = [i for i, event in enumerate(log) if event == ("write", temp)]
        syncs = [i for i, event in enumerate(log) if event == ("fsync", temp)]
        assert writes
        assert max(writes) < min(syncs) < at
        assert ("fsync", str(Path(target).parent)) in log[at:end], "the folder is synced before the next file is named"


def test_short_writes_are_continued(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that accepts three bytes at a time still gets every byte."""

    class Stingy:
        def __getattr__(self, name: str) -> Any:
            return (lambda fd, data: os.write(fd, data[:3])) if name == "write" else getattr(os, name)

    monkeypatch.setattr(disk, "os", Stingy())
    store = Store(place / "store")
    put(store, 1, place / "source")
    assert whole(store, 1)
    sound(store)


def kill_many(place: Path, times: int) -> None:
    """A committing child dies by SIGKILL at a random moment, again and again, in one store."""
    store, source, rng = Store(place / "store"), place / "source", random.Random(times)
    completed = 0
    for i in range(times):
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                disk.CHUNK = 256  # more system calls, more places to die
                for n in range(i % 30, 30):
                    store.tag(f"kill/{n}", put(store, n, source / "child").key)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sound(store)
        for n in range(30):
            found = store.find(key_of(n))
            completed += found is not None
            assert found is None or whole(store, n)
        put(store, i % 30, source)
        assert whole(store, i % 30)
        if i % 10 == 9:  # start afresh, so that first writes are hit too
            for alias in store.refs():
                store.untag(alias)
            store.gc(delete=True, grace=0)
    assert completed > 0, "the children got some work done"


def test_kill_at_random_times(place: Path) -> None:
    """Promise 1, 30 kills: deep verify is clean after each and a rerun completes."""
    kill_many(place, 30)


@pytest.mark.slow
def test_kill_at_random_times_often(place: Path) -> None:
    """Promise 1, 200 kills, or as many as CNF_KILLS says."""
    kill_many(place, int(os.environ.get("CNF_KILLS", "200")))


def test_only_one_file_writes() -> None:
    """Every changing system call of the store is in store/disk.py, where the tests above can make it fail."""
    words = ("write_text", "write_bytes", ".unlink(", ".rename(", ".replace(", ".mkdir(", "shutil", "os.open", "open(")
    for path in Path(disk.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert "flock" not in text
        if path.name != "disk.py":
            found = [w for w in words if w in text and w != "open("]
            found = [w for w in found if w != ".unlink(" or "disk.unlink(" not in text or text.count(w) > 1]
            assert not found, f"{path.name}: {found}"


def test_manifest_is_not_visible_before_its_blobs(place: Path) -> None:
    """At every call of a commit, the key is a miss or all its bytes are there."""
    store, source = Store(place / "store"), place / "source"
    put(store, 1, source)
    states: list[bool] = []

    def look(number: int, name: str, args: tuple[Any, ...]) -> None:
        seen: Manifest | None = None
        disk.os = os
        seen = store.read(key_of(2))
        states.append(seen is not None)
        assert seen is None or whole(store, 2)
        disk.os = proxy

    with calls(look) as proxy:
        put(store, 2, source)
    assert True in states
    assert False in states
