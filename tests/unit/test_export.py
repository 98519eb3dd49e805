"""An exported artifact comes back: as a folder or a tar, with the same id and lineage, or not at all."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cnf_cli.errors import ArtifactError
from cnf_cli.store import Manifest, Store, disk
from tests.helpers import cnf, cnf_json
from tests.reliability.store_kit import key_of, put, snapshot, temps


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Manifest]:
    """A store with an artifact made from two others, one of which was made from a fourth."""
    monkeypatch.setattr(disk, "FAN", 2)
    store, source = Store(tmp_path / "one"), tmp_path / "source"
    first = put(store, 1, source)
    second = put(store, 2, source, {"first": first})
    return store, put(store, 3, source, {"second": second, "first": first})


def nothing(name: str, path: Path) -> None:
    """Every file is welcome."""


def tarred(folder: Path, into: Path, format: int, top: str = "x") -> Path:
    """A tar of a folder as other tools make it: with folders, times and owners in it."""
    with tarfile.open(into, "w", format=format) as archive:
        archive.add(folder, arcname=top)
    return into


WAYS: dict[str, Callable[[Store, str, Path], Path]] = {
    "folder": lambda store, key, tmp: (store.send(key, tmp / "out"), tmp / "out")[1],
    "tar": lambda store, key, tmp: store.send(key, tmp / "out.tar")[0],
    "tar of the folder (pax)": lambda store, key, tmp: tarred(
        WAYS["folder"](store, key, tmp), tmp / "a.tar", tarfile.PAX_FORMAT
    ),
    "tar of the folder (gnu)": lambda store, key, tmp: tarred(
        WAYS["folder"](store, key, tmp), tmp / "a.tar", tarfile.GNU_FORMAT, "a" * 90
    ),
    "tar of the folder (ustar)": lambda store, key, tmp: tarred(
        WAYS["folder"](store, key, tmp), tmp / "a.tar", tarfile.USTAR_FORMAT, "."
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_export_comes_back_with_the_same_id_and_lineage(
    made: tuple[Store, Manifest], tmp_path: Path, way: str
) -> None:
    """Into an empty store: the manifest, every ancestor's and all bytes are equal, and the store is sound."""
    store, top = made
    other = Store(tmp_path / "two")
    assert other.take_in(WAYS[way](store, top.key, tmp_path), nothing) == top
    assert other.lineage(top.key) == store.lineage(top.key)
    for one in store.manifests():
        assert other.find(one.key) == one
        for name in one.outputs:
            assert other.open(one.key, name).read_bytes() == store.open(one.key, name).read_bytes()
    assert other.verify(deep=True).ok
    assert not temps(other.root)


def test_equal_artifacts_give_equal_archives(made: tuple[Store, Manifest], tmp_path: Path) -> None:
    """The archive does not tell who wrote it or when."""
    store, top = made
    one, two = (store.send(top.key, tmp_path / name)[0] for name in ("a.tar", "b.tar"))
    assert one.read_bytes() == two.read_bytes()


def test_nothing_is_overwritten_by_an_export(made: tuple[Store, Manifest], tmp_path: Path) -> None:
    """A file that is there, manifest.json included, stays unless the user says otherwise."""
    store, top = made
    (tmp_path / "out").mkdir()
    for target, taken in ((tmp_path / "out", tmp_path / "out" / "manifest.json"), (tmp_path / "a.tar",) * 2):
        taken.write_text("mine")
        with pytest.raises(ArtifactError, match="exist"):
            store.send(top.key, target)
        assert taken.read_text() == "mine"
        store.send(top.key, target, overwrite=True)
        assert taken.read_bytes() != b"mine"


def test_a_changed_file_in_an_export_is_refused(made: tuple[Store, Manifest], tmp_path: Path) -> None:
    """Another byte, a missing file, another size: an error, and the artifact is not in the store."""
    store, top = made
    folder = tmp_path / "out"
    store.send(top.key, folder)
    whole = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for name, data in whole.items():
        for wrong in (None, data[:-1], bytes([data[0] ^ 1]) + data[1:], data + b"x"):
            shutil.rmtree(folder)
            for other, content in whole.items():
                (folder / other).parent.mkdir(parents=True, exist_ok=True)
                (folder / other).write_bytes(content)
            (folder / name).unlink() if wrong is None else (folder / name).write_bytes(wrong)
            other_store = Store(tmp_path / "two")
            if wrong is None and name.endswith("manifest.json") and name != "manifest.json":
                assert other_store.take_in(folder, nothing) == top  # an ancestor that is not there is only missing
            else:
                with pytest.raises(ArtifactError):
                    other_store.take_in(folder, nothing)
                assert other_store.find(top.key) is None, name
            assert other_store.verify(deep=True).ok
            assert not temps(other_store.root)
            shutil.rmtree(tmp_path / "two", ignore_errors=True)


def test_another_result_under_the_same_key_is_not_replaced(made: tuple[Store, Manifest], tmp_path: Path) -> None:
    """Where the store has other bytes under that key it says so, and --force decides."""
    store, top = made
    store.send(top.key, tmp_path / "a.tar")
    other = Store(tmp_path / "two")
    kept = put(other, 1, tmp_path / "source")
    about = {"stage": top.stage, "version": top.version, "sections": top.sections, "inputs": top.inputs}
    (tmp_path / "else").write_text("else")
    mine = other.commit(top.key, {"a.bin": tmp_path / "else"}, **about, provenance={}, checks={})
    with pytest.raises(ArtifactError, match="another result"):
        other.take_in(tmp_path / "a.tar", nothing)
    assert other.find(top.key) == mine
    assert other.take_in(tmp_path / "a.tar", nothing, replace=True) == top
    assert other.find(top.key) == top
    assert other.find(kept.key) == kept


def hostile(kind: str) -> bytes:
    """An archive that is not what an export writes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("manifest.json")
        if kind in ("symlink", "hardlink", "fifo", "device"):
            member.type = {
                "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE,
                "device": tarfile.CHRTYPE,
            }[kind]  # fmt: skip
            member.linkname = "/etc/passwd"
            archive.addfile(member)
        elif kind == "twice":
            archive.addfile(member)
            archive.addfile(member)
        elif kind == "evil names":
            for name in ("../../evil", "/evil", "a/../../evil"):
                archive.addfile(tarfile.TarInfo(name))
    data = bytearray(out.getvalue())
    if kind == "huge":
        header = bytearray(tarfile.TarInfo("manifest.json").tobuf())
        header[124:136] = b"77777777777\0"
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        data = header + bytes(1024)
    return bytes(data)


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "device", "twice", "evil names", "huge", "empty"])
def test_a_hostile_archive_is_refused(tmp_path: Path, kind: str) -> None:
    """Links, devices, names outside, sizes beyond the file: an error, and nothing is written."""
    (tmp_path / "a.tar").write_bytes(hostile(kind) or bytes(10240))
    before = snapshot(tmp_path)
    with pytest.raises(ArtifactError):
        Store(tmp_path / "two").take_in(tmp_path / "a.tar", nothing)
    assert snapshot(tmp_path) == before


def test_the_commands_send_and_take_in(tmp_path: Path) -> None:
    """`cnf export` and `cnf import` by folder and by tar: the same id and the same `cnf show`."""
    one, two = tmp_path / "one", tmp_path / "two"
    data = cnf_json("data", "generate", "tsp", "--n", "6", "--count", "5", store=one)["id"]
    labelled = cnf_json("label", data, "--solver", "descent", store=one)["id"]
    for target in ("out", "out.tar"):
        assert cnf("export", labelled, str(tmp_path / target), store=one).returncode == 0
        told = cnf_json("import", str(tmp_path / target), "--as", "data/theirs", store=two)
        assert told["id"] == labelled
        assert cnf_json("show", "data/theirs", store=two) == cnf_json("show", labelled, store=one)
        assert cnf("verify", "--deep", store=two).returncode == 0
        shutil.rmtree(two)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["key"] == labelled
    again = cnf("export", labelled, str(tmp_path / "out"), store=one)
    assert again.returncode == 3
    assert "exist already" in again.stderr


def test_a_data_set_that_no_reader_takes_is_not_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed, keyed and hashed correctly, but not a data set: refused before a manifest names it."""
    from cnf_cli.stages.exported import take_in

    monkeypatch.setattr(disk, "FAN", 2)
    store = Store(tmp_path / "one")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\nnothing of the kind")
    about = {"sections": {"n": 0}, "provenance": {}, "checks": {}}
    key = key_of(0)
    store.commit(key, {"data.h5": tmp_path / "a.h5"}, stage="demo", version=1, inputs={}, **about)
    store.send(key, tmp_path / "a.tar")
    with pytest.raises(ArtifactError, match="cannot be used"):
        take_in(Store(tmp_path / "two"), tmp_path / "a.tar")
    assert Store(tmp_path / "two").find(key) is None
    assert not temps(tmp_path / "two")
