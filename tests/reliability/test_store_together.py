"""Promise 4: writers, readers and gc side by side, without locks."""

from __future__ import annotations

import hashlib
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.errors import ArtifactError
from cnf_cli.store import Manifest, Store, disk
from tests.reliability.store_kit import age, calls, content, key_of, put, temps, whole

KEYS = 20


def children(jobs: list[Callable[[], None]], places: Path) -> None:
    """All jobs run at once, each in its own process, and none fails."""
    started = []
    for i, job in enumerate(jobs):
        child = os.fork()
        if child == 0:
            try:
                job()
            except BaseException:
                (places / f"{i}.error").write_text(traceback.format_exc())
            finally:
                os._exit(0)
        started.append(child)
    for child in started:
        os.waitpid(child, 0)
    said = [path.read_text() for path in places.glob("*.error")]
    assert not said, said[0]


def writer(root: Path, source: Path, who: int, commits: int) -> Callable[[], None]:
    def job() -> None:
        store = Store(root)
        for i in range(commits):
            n = (who * 7 + i * 3) % KEYS
            key = put(store, n, source / f"{who}").key
            assert whole(store, n)
            store.tag(f"shared/{n}", key)
            store.tag(f"own/{who}", key)

    return job


def collector(root: Path, until: Path, source: Path) -> Callable[[], None]:
    """gc in a loop, fed with old garbage that has the very bytes the writers commit."""

    def job() -> None:
        store, stop = Store(root), time.monotonic() + 120
        while not until.exists() and time.monotonic() < stop:
            for n in range(KEYS):
                for data in content(n).values():
                    old = source / f"old{n}"
                    old.unlink(missing_ok=True)
                    old.write_bytes(data)
                    os.utime(old, (1e9, 1e9))
                    blob = store.blob(hashlib.sha256(data).hexdigest())
                    blob.parent.mkdir(parents=True, exist_ok=True)
                    if not blob.exists():
                        try:
                            os.link(old, blob)
                        except FileExistsError:
                            old.unlink()
            store.gc(delete=True, grace=60)

    return job


def together(place: Path, writers: int, commits: int, with_gc: bool) -> None:
    root, source, done = place / "store", place / "source", place / "done"
    source.mkdir()
    jobs = [writer(root, source, who, commits) for who in range(writers)]
    if with_gc:
        store = Store(root)
        for n in range(KEYS):
            put(store, n, source)
        age(root)  # complete, old and unreferenced: gc wants it while the writers make it again

        def all_writers() -> None:
            try:
                children(jobs, place)
            finally:
                done.touch()

        children([all_writers, collector(root, done, source)], place)
    else:
        children(jobs, place)
    store = Store(root)
    report = store.verify(deep=True)
    assert report.ok, report.problems
    assert not temps(root)
    made = {(who * 7 + i * 3) % KEYS for who in range(writers) for i in range(commits)}
    assert all(whole(store, n) for n in made)
    assert {m.key for m in store.manifests()} >= {key_of(n) for n in made}
    assert len(list(store.manifests())) == len({m.key for m in store.manifests()}) <= KEYS
    assert set(store.refs()) == {f"shared/{n}" for n in made} | {f"own/{who}" for who in range(writers)}


@pytest.mark.parametrize("with_gc", [False, True])
def test_writers_do_not_disturb_each_other(place: Path, with_gc: bool) -> None:
    """4 processes x 12 commits on shared keys in a new store, alone and beside a looping gc."""
    together(place, 4, 12, with_gc)


@pytest.mark.slow
@pytest.mark.parametrize("with_gc", [False, True])
def test_many_writers_do_not_disturb_each_other(place: Path, with_gc: bool) -> None:
    """8 processes x 50 commits on 20 shared keys, alone and beside a looping gc."""
    together(place, 8, 50, with_gc)


def at_every_call(outer: Callable[[], object], inner: Callable[[], object], k: int) -> int:
    """Runs `outer` with all of `inner` happening just before its k-th system call; the number of calls."""

    def before(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == k:
            disk.os = os  # the other process has working system calls of its own
            inner()
            disk.os = proxy

    with calls(before, also=("lstat", "scandir")) as proxy:
        outer()
    return proxy.count


@pytest.fixture
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FAN", 1)


@pytest.mark.parametrize("order", ["gc in commit", "commit in gc"])
def test_gc_and_commit_interleaved_at_every_call(place: Path, few_folders: None, order: str) -> None:
    """Whatever call the other one comes before, an artifact that gc was about to take is whole after its commit."""
    store, source = Store(place / "store"), place / "source"
    for k in range(1, 300):
        put(store, 1, source)
        age(store.root)
        commit: Callable[[], object] = lambda: put(store, 1, source)  # noqa: E731
        gc: Callable[[], object] = lambda: store.gc(delete=True)  # noqa: E731
        first, second = (commit, gc) if order == "gc in commit" else (gc, commit)
        count = at_every_call(first, second, k)
        if count < k:
            break
        assert whole(store, 1), k
        report = store.verify(deep=True)
        assert report.ok, (k, report.problems)
        assert not temps(store.root)
    assert 12 < k < 300


def test_tag_and_gc_interleaved_at_every_call(place: Path, few_folders: None) -> None:
    """A tag written while gc runs either says the artifact is gone or keeps it whole."""
    store, source = Store(place / "store"), place / "source"
    kept = 0
    for k in range(1, 300):
        put(store, 1, source)
        age(store.root)
        refused = []

        def tag(refused: list[str] = refused) -> None:
            try:
                store.tag("late", key_of(1))
            except ArtifactError as error:
                refused.append(error.message)

        count = at_every_call(lambda: store.gc(delete=True), tag, k)
        if count < k:
            break
        kept += not refused
        assert refused or whole(store, 1), k
        assert store.verify(deep=True).ok
        if not refused:
            store.untag("late")
    assert 8 < k < 300
    assert 0 < kept < k, "both outcomes occur"


def test_a_commit_that_outlives_the_grace_is_not_broken_by_gc(place: Path) -> None:
    """Blobs of a commit that takes longer than gc's grace are written again before the manifest names them."""
    store, source = Store(place / "store"), place / "source"
    put(store, 1, source)
    slow = {"done": False}

    def old_and_collected(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "utime" and not slow["done"]:  # all copied, about to be named
            slow["done"] = True
            disk.os = os
            for path, _ in disk.walk(store.root / "objects"):
                os.utime(path, (1e9, 1e9))
            assert store.gc(delete=True).removed
            disk.os = proxy

    with calls(old_and_collected) as proxy:
        put(store, 2, source)
    assert slow["done"]
    assert whole(store, 2)
    assert store.verify(deep=True).ok


def test_inputs_of_a_new_artifact_survive_a_gc_already_running(place: Path, few_folders: None) -> None:
    """Committing an artifact renews what it was made from, at whatever call of gc it happens."""
    store, source = Store(place / "store"), place / "source"
    survived = 0
    for k in range(1, 300):
        base = put(store, 1, source)
        age(store.root)
        seen = []

        def commit(base: Manifest = base, seen: list[bool] = seen) -> None:
            put(store, 2, source, {"base": base})
            seen.append(store.find(base.key) is not None)

        if at_every_call(lambda: store.gc(delete=True), commit, k) < k:
            break
        survived += seen[0]
        assert whole(store, 1) or not seen[0], k
    assert 8 < k < 300
    assert 0 < survived < k


@pytest.mark.parametrize("times", [1, 99])
def test_a_commit_looks_again_after_naming_its_blobs(place: Path, times: int) -> None:
    """Blobs lost in the instant before the manifest appears are written again; if it goes on, that is an error."""
    store, source = Store(place / "store"), place / "source"
    put(store, 1, source)
    lost = []

    def lose(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "replace" and str(args[1]).endswith(".json") and len(lost) < times:
            lost.append(number)
            for path, _ in disk.walk(store.root / "objects"):
                os.unlink(path)

    with calls(lose):
        if times > 1:
            with pytest.raises(ArtifactError, match="does not stay"):
                put(store, 2, source)
        else:
            put(store, 2, source)
            assert whole(store, 2)
    assert lost


def test_a_reader_keeps_its_file_when_the_artifact_is_committed_again(place: Path) -> None:
    """An open file goes on reading its own bytes while the blob is replaced by an equal one."""
    store, source = Store(place / "store"), place / "source"
    made = put(store, 6, source)
    with store.open(made.key, "a.bin").open("rb") as reader:
        head = reader.read(10)
        put(store, 6, source)
        assert head + reader.read() == content(6)["a.bin"]
