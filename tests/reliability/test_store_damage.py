"""Promises 5, 6, 18 and 21: damage is found, a full disk is only an error, other stores are handled."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cnf_cli.errors import ArtifactError
from cnf_cli.store import Manifest, Store, disk, make_key
from tests.reliability.store_kit import as_nobody, key_of, put, snapshot, temps, tmpfs, whole

FROZEN = Path(__file__).parent.parent / "data" / "store-v1"


@pytest.fixture
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FAN", 1)


@pytest.fixture
def filled(place: Path, few_folders: None) -> Store:
    """Eight artifacts, each with a blob of its own and one it shares, and four aliases."""
    store = Store(place / "store")
    for n in range(8):
        made = put(store, n, place / "source")
        if n % 2:
            store.tag(f"demo/{n}", made.key)
    return store


def parts(store: Store) -> list[Path]:
    """Every file that holds content: blobs, manifests, refs."""
    return sorted(path for top in ("objects", "stages", "refs") for path, _ in disk.walk(store.root / top))


def users(store: Store, path: Path) -> list[int]:
    """The artifacts that cannot be served once this file is damaged."""
    return [
        n
        for n in range(8)
        if (m := store.find(key_of(n)))
        and path in (store.manifest(m.key), *(store.blob(out.sha256) for out in m.outputs.values()))
    ]


def found_and_repaired(store: Store, damaged: Path, hit: list[int], source: Path) -> None:
    """Deep verify names the damage, its artifacts are misses, running them again repairs everything."""
    report = Store(store.root).verify(deep=True)
    assert damaged in [p.path for p in report.problems], damaged
    named = {key for p in report.problems for key in p.artifacts}
    assert named >= {key_of(n) for n in hit}
    for n in range(8):
        assert (store.find(key_of(n)) is None) == (n in hit)
    for n in hit:
        put(store, n, source)
    for n in (1, 3, 5, 7):
        store.tag(f"demo/{n}", key_of(n))
    for left in store.root.rglob("*.bad"):
        left.unlink()
    assert store.verify(deep=True).ok
    assert all(whole(store, n) for n in range(8))


def flips(store: Store, source: Path, times: int) -> None:
    rng = random.Random(times)
    for _ in range(times):
        path = rng.choice(parts(store))
        hit = users(store, path)
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        data[at] ^= rng.randrange(1, 256)
        path.chmod(0o644)
        path.write_bytes(data)
        if path.is_relative_to(store.root / "stages"):
            assert store.find(key_of(hit[0])) is None, "a damaged manifest is a miss even before verify"
        found_and_repaired(store, path, hit, source)


def test_flipped_bytes_are_found(filled: Store, place: Path) -> None:
    """60 random flips in blobs, manifests and refs: all found, never served, repaired by a rerun."""
    flips(filled, place / "source", 60)


@pytest.mark.slow
def test_many_flipped_bytes_are_found(filled: Store, place: Path) -> None:
    """The same 500 times."""
    flips(filled, place / "source", 500)


@pytest.mark.parametrize("cut", ["0", "1", "half", "-1"])
def test_truncated_files_are_found(filled: Store, place: Path, cut: str) -> None:
    """Every file of the store, cut to nothing, one byte, half, all but one byte."""
    for path in parts(filled):
        hit, size = users(filled, path), path.stat().st_size
        keep = {"0": 0, "1": 1, "half": size // 2, "-1": size - 1}[cut]
        if keep == size:
            continue
        path.chmod(0o644)
        os.truncate(path, keep)
        assert all(filled.find(key_of(n)) is None for n in hit), "size is checked on every hit"
        found_and_repaired(filled, path, hit, place / "source")


def test_swapped_blobs_are_found(filled: Store, place: Path) -> None:
    """Two blobs of equal size that trade places are both found by deep verify and both become misses."""
    rng = random.Random(1)
    blobs = [path for path in parts(filled) if path.is_relative_to(filled.root / "objects")]
    pairs = [(a, b) for a in blobs for b in blobs if a < b and a.stat().st_size == b.stat().st_size]
    assert pairs
    for a, b in rng.sample(pairs, min(3, len(pairs))):
        hit = sorted({*users(filled, a), *users(filled, b)})
        spare = place / "spare"
        a.rename(spare)
        b.rename(a)
        spare.rename(b)
        assert filled.verify().ok, "sizes alone cannot tell"
        found_and_repaired(filled, a, hit, place / "source")


def test_damage_is_not_exported(filled: Store, place: Path) -> None:
    """Export rehashes what it copies, and leaves nothing of a damaged output behind."""
    path = filled.open(key_of(6), "a.bin")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="damaged"):
        filled.export(key_of(6), place / "out")
    assert not list((place / "out").rglob("*.*"))


def test_gc_does_not_guess_beside_damage(filled: Store) -> None:
    """While something in use is unreadable, gc says so and removes neither artifacts nor blobs."""
    path = filled.manifest(key_of(1))
    path.unlink()
    path.write_bytes(b"{}")
    before = snapshot(filled.root)
    sweep = filled.gc(delete=True, grace=0)
    assert "damaged" in sweep.notes[0]
    assert snapshot(filled.root) == before
    filled.untag("demo/1")
    assert filled.gc(delete=True, grace=0).removed
    assert whole(filled, 3)
    (filled.root / "refs/demo/3").unlink()
    (filled.root / "refs/demo/3").write_text("?")
    assert "damaged" in filled.gc(delete=True, grace=0).notes[0]
    assert whole(filled, 3)


def test_gc_tolerates_missing_files(filled: Store) -> None:
    """Lost blobs, manifests and folders do not stop gc from collecting the rest."""
    filled.open(key_of(1), "a.bin").unlink()
    filled.manifest(key_of(3)).unlink()
    shutil.rmtree(filled.manifest(key_of(0)).parent)
    sweep = filled.gc(delete=True, grace=0)
    assert not sweep.notes
    assert {m.key for m in filled.manifests()} == {key_of(n) for n in (1, 5, 7)}
    assert whole(filled, 5)


# ---- full disk


@pytest.fixture(params=[1, 2, 4])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    with tmpfs(tmp_path / "mount", request.param) as mount:
        yield mount, request.param


def commit_big(store: Store, path: Path) -> Manifest:
    key = make_key("big", 1, {}, {})
    about = {"sections": {}, "inputs": {}, "provenance": {}, "checks": {}}
    return store.commit(key, {"big.bin": path}, stage="big", version=1, **about)


def test_full_disk_is_an_error_not_damage(small_disk: tuple[Path, int], tmp_path: Path) -> None:
    """5 MB into 1, 2 and 4 MB: mount and bytes are named, nothing is lost or left, and it works with more space."""
    mount, _ = small_disk
    store, big = Store(mount / "deep" / "store"), tmp_path / "big.bin"
    data = random.Random(0).randbytes(5 << 20)
    big.write_bytes(data)
    put(store, 1, tmp_path / "source")
    for _ in range(3):
        with pytest.raises(ArtifactError) as caught:
            commit_big(store, big)
        assert str(mount) + ":" in caught.value.message
        assert "5,242,880 bytes" in caught.value.message
        assert caught.value.hint
        assert not temps(store.root)
    assert store.verify(deep=True).ok
    assert whole(store, 1)
    assert big.read_bytes() == data
    subprocess.run(["mount", "-o", "remount,size=16m", str(mount)], check=True)
    made = commit_big(store, big)
    assert store.open(made.key, "big.bin").read_bytes() == data
    assert store.verify(deep=True).ok


def test_file_size_limit_is_an_error_not_damage(place: Path, few_folders: None) -> None:
    """The same where the limit is on the size of one file (RLIMIT_FSIZE)."""
    store, big = Store(place / "store"), place / "big.bin"
    big.write_bytes(bytes(3 << 20))
    put(store, 1, place / "source")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        with pytest.raises(ArtifactError, match="3,145,728 bytes"):
            commit_big(store, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not temps(store.root)
    assert store.verify(deep=True).ok
    commit_big(store, big)


# ---- old, newer, foreign and read-only stores


def frozen(place: Path) -> Store:
    shutil.copytree(FROZEN, place / "v1")
    return Store(place / "v1")


def test_a_store_of_format_1_opens(place: Path) -> None:
    """The frozen store still resolves, reads, verifies, exports and grows; its keys are still made the same way."""
    store = frozen(place)
    assert store.verify(deep=True).ok
    assert store.refs().keys() == {"demo/train", "demo/evaluate"}
    key = store.resolve("demo/evaluate")
    assert key == "90b47444f9b3daa801f7fb357bd6e5d6363de9341a4d12b2d9217153168cef0b"
    found = store.find(key)
    assert found
    assert found.key == make_key(
        found.stage, found.version, found.sections, {n: i.digest for n, i in found.inputs.items()}
    )
    trained = store.lineage(key).children["model"].manifest
    assert trained
    assert trained.digest == found.inputs["model"].digest
    assert store.open(key, "costs.csv").read_text() == "instance,cost\n0,3.75\n"
    assert [p.name for p in store.export(trained.key, place / "out")] == ["log.txt", "weights.bin"]
    put(store, 1, place / "source")
    assert whole(store, 1)
    assert store.gc(delete=True, grace=0).removed
    assert store.find(key)
    assert store.find(trained.key), "gc follows inputs"


@pytest.mark.parametrize("text", ["2\n", "17\n"])
def test_a_newer_store_is_refused_and_left_alone(place: Path, text: str) -> None:
    """Opening names both formats and what to do; a store upgraded under an open one is refused too."""
    store = frozen(place)
    (store.root / "format").unlink()
    (store.root / "format").write_text(text)
    before = snapshot(store.root)
    with pytest.raises(ArtifactError, match=f"format {text.strip()}") as caught:
        Store(store.root)
    assert "upgrade" in str(caught.value.hint)
    key = store.resolve("demo/train")
    for step in (
        lambda: put(store, 1, place / "source"),
        lambda: store.tag("x", key),
        lambda: store.untag("demo/train"),
        lambda: store.work(key),
        lambda: store.gc(delete=True, grace=0),
    ):
        with pytest.raises(ArtifactError, match="format"):
            step()
    assert snapshot(store.root) == before


@pytest.mark.parametrize("text", ["", "1", "one\n", "-1\n", "²\n", "1\n1\n"])
def test_a_damaged_format_file_is_named(place: Path, text: str) -> None:
    """Anything but a number and a line end is called damaged."""
    store = frozen(place)
    (store.root / "format").unlink()
    (store.root / "format").write_text(text)
    with pytest.raises(ArtifactError, match="damaged"):
        Store(store.root)


def test_a_read_only_store_can_be_read(place: Path) -> None:
    """Everything that looks works without write permission; everything that writes gives one clear error."""
    store, source = frozen(place), place / "source"
    key = store.resolve("demo/evaluate")
    put(store, 1, source)  # not tagged: gc would remove it
    subprocess.run(["chmod", "-R", "a-w,a+rX", str(place)], check=True)
    before = snapshot(store.root)

    def check() -> None:
        store = Store(place / "v1")
        assert store.find(key)
        assert store.resolve(key[:8]) == key
        assert store.open(key, "costs.csv").read_text().startswith("instance")
        assert [m.stage for m in store.manifests("train")] == ["train"]
        assert store.lineage(key).children["model"].manifest
        assert store.refs()["demo/evaluate"] == key
        assert store.verify(deep=True).ok
        assert store.du().objects == 5
        store.gc()
        store.tag("demo/evaluate", key)  # already so: nothing to write
        steps = {
            "commit": lambda: put_again(store),
            "tag": lambda: store.tag("new", key),
            "untag": lambda: store.untag("demo/evaluate"),
            "work": lambda: store.work(key),
            "gc": lambda: store.gc(delete=True, grace=0),
        }
        for step in steps.values():
            with pytest.raises(ArtifactError, match="ermission denied") as caught:
                step()
            assert "--store" in str(caught.value.hint)

    def put_again(store: Store) -> None:
        about = {"sections": {}, "inputs": {}, "provenance": {}, "checks": {}}
        path = source / "1" / "a.bin"
        store.commit(make_key("big", 1, {}, {}), {"a": path}, stage="big", version=1, **about)

    try:
        as_nobody(place, check)
        assert snapshot(store.root) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_foreign_private_store_gives_one_clear_error(place: Path) -> None:
    """A store made under umask 077 by someone else is refused on opening, with what to ask for."""
    old = os.umask(0o077)
    try:
        store = Store(place / "store")
        key = put(store, 1, place / "source").key
        shutil.copytree(store.root, place / "inner")
    finally:
        os.umask(old)
    (place / "inner").chmod(0o755)

    def check() -> None:
        for name in ("store", "inner"):
            with pytest.raises(ArtifactError, match="permission denied") as caught:
                Store(place / name)
            assert "chmod" in str(caught.value.hint)

    as_nobody(place, check)
    subprocess.run(["chmod", "-R", "a+X", str(place)], check=True)
    subprocess.run(["find", str(place / "store"), "-type", "d", "-exec", "chmod", "a+rwx", "{}", "+"], check=True)

    def files_private() -> None:
        store = Store(place / "store")
        assert store.find(key) is None
        with pytest.raises(ArtifactError, match=r"not readable for you|[Pp]ermission denied"):
            store.open(key, "a.bin")
        assert not store.verify(deep=True).ok

    (place / "store" / "format").chmod(0o444)
    as_nobody(place, files_private)
    assert whole(store, 1), "looking did not set the unreadable blobs aside"
