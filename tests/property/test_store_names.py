"""Promise 8: no name and no planted link leads out of the store."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnf_cli.errors import ArtifactError, CnfError, RecipeError
from cnf_cli.store import Manifest, Output, Store, check_name, make_key

EVIL = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/etc/passwd",
    "a//b",
    "a/",
    "/",
    "a\\b",
    "..\\x",
    "c:\\x",
    "c:x",
    "a\0b",
    "a\n",
    "a\nb",
    "\n",
    "~",
    "~root/x",
    "-rf",
    ".hidden",
    "a/.tmp",
    "a" * 65,
    "a" * 300,
    "a/" * 4 + "a",
    "а",  # Cyrillic
    "ａ",  # full width
    "a\u2044b",
    "a\u202eb",
    "é",
    "A",
    "a b",
    "a$b",
    "a*",
    "%2e%2e",
    "con",
    "nul",
    "aux.txt",
    "com1",
    "lpt9.tar.gz",
    "a/con/b",
    "a.",
    "0" * 64,  # would look like a key
]
GOOD = ["a", "0", "weights.safetensors", "demo/train", "a/b/c/d", "z" * 64, "tsp-100_x.y", "console", "com10", "a..b"]


def fine(name: str) -> bool:
    """The rule, said another way than the code says it."""
    parts = name.split("/")
    letters, inner = set(string.ascii_lowercase + string.digits), set(string.ascii_lowercase + string.digits + "._-")
    devices = {"con", "prn", "aux", "nul", *(f"{d}{i}" for d in ("com", "lpt") for i in range(10))}
    key_like = len(name) == 64 and set(name) <= set("0123456789abcdef")
    return (
        1 <= len(parts) <= 4
        and all(1 <= len(p) <= 64 and p[0] in letters and set(p) <= inner and p[-1] != "." for p in parts)
        and not any(p.split(".")[0] in devices for p in parts)
        and not key_like
    )


def accepted(name: str) -> bool:
    try:
        assert check_name(name) == name
    except RecipeError as error:
        return not (error.hint and len(error.message) < 500)  # a refusal without help would show as a wrong answer
    return True


near_names = st.lists(
    st.sampled_from(["..", ".", "/", "\\", "a", "B", "-", "_", "con", "\0", "\n", "~", "é", "a" * 30, "0", "tmp"]),
    max_size=9,
)
strings = st.one_of(st.text(max_size=70), near_names.map("".join), st.from_regex(r"[a-z0-9./_-]{0,70}", fullmatch=True))


@settings(max_examples=1000, deadline=None)
@given(strings)
def test_the_grammar_is_the_rule(name: str) -> None:
    """1,000 strings: accepted exactly when the rule allows, and then inside any folder they are joined to."""
    stays_inside(name)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(strings)
def test_the_grammar_is_the_rule_at_length(name: str) -> None:
    """The same for 10,000 strings."""
    stays_inside(name)


def stays_inside(name: str) -> None:
    assert accepted(name) == fine(name)
    if accepted(name):
        assert os.path.normpath(f"/store/refs/{name}") == f"/store/refs/{name}"


def commit(store: Store, file: Path, name: str = "out.txt") -> Manifest:
    about: dict[str, dict[str, object]] = {"sections": {}, "provenance": {}, "checks": {}}
    return store.commit(make_key("demo", 1, {}, {}), {name: file}, stage="demo", version=1, inputs={}, **about)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("content")
    return path


def everything(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.mark.parametrize("name", EVIL)
def test_evil_names_are_refused_everywhere(tmp_path: Path, file: Path, name: str) -> None:
    """As an alias or an output name, each of the list is refused before anything is written."""
    assert not fine(name)
    store = Store(tmp_path / "store")
    with pytest.raises(RecipeError):
        commit(store, file, name)
    assert not store.root.exists()
    made = commit(store, file)
    before = everything(tmp_path)
    for step in (lambda: store.tag(name, made.key), lambda: store.untag(name), lambda: store.resolve(name)):
        with pytest.raises(CnfError):
            step()
    with pytest.raises(ArtifactError):
        store.open(made.key, name)
    assert store.find(name) is None
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", GOOD)
def test_good_names_work_everywhere(tmp_path: Path, file: Path, name: str) -> None:
    """As an alias and as an output name, through commit, tag, open, export and untag."""
    store = Store(tmp_path / "store")
    made = commit(store, file, name)
    store.tag(name, made.key)
    assert store.resolve(name) == made.key
    assert store.open(made.key, name).read_text() == "content"
    assert store.export(made.key, tmp_path / "out") == [tmp_path / "out" / name]
    store.untag(name)
    assert not store.refs()


@pytest.mark.parametrize("name", [n for n in EVIL if n])
def test_a_forged_manifest_writes_nothing_on_export(tmp_path: Path, file: Path, name: str) -> None:
    """Sealed and keyed correctly, but with an evil output name: it is not a manifest, and export leaves no trace."""
    store = Store(tmp_path / "store")
    made = commit(store, file)
    forged = Manifest("demo", made.key, 1, {name: made.outputs["out.txt"]}, {}, {}, {}, {})
    path = store.manifest(made.key)
    path.unlink()
    path.write_bytes(forged.dump())
    before = everything(tmp_path)
    assert store.find(made.key) is None
    with pytest.raises(ArtifactError):
        store.export(made.key, tmp_path / "a" / "b" / "out")
    assert everything(tmp_path) == before
    assert not store.verify().ok


@pytest.mark.parametrize("sha256", ["../secret", "0" * 63, "A" * 64, "", "0" * 64 + "\n"])
def test_a_forged_digest_reads_nothing_outside(tmp_path: Path, file: Path, sha256: str) -> None:
    """An output whose digest is a path is not an output."""
    store = Store(tmp_path / "store")
    made = commit(store, file)
    (tmp_path / "secret").write_text("secret!")
    path = store.manifest(made.key)
    path.unlink()
    path.write_bytes(Manifest("demo", made.key, 1, {"x": Output(sha256, 7)}, {}, {}, {}, {}).dump())
    assert store.find(made.key) is None
    with pytest.raises(ArtifactError):
        store.open(made.key, "x")


def test_planted_links_are_refused(tmp_path: Path, file: Path) -> None:
    """Blobs, manifests, refs, folders and work folders that are links are neither followed nor written through."""
    store, outside = Store(tmp_path / "store"), tmp_path / "outside"
    outside.mkdir()
    made = commit(store, file)
    key, blob = made.key, store.blob(made.outputs["out.txt"].sha256)

    (tmp_path / "copy").write_bytes(blob.read_bytes())
    blob.unlink()
    blob.symlink_to(tmp_path / "copy")
    assert store.find(key) is None
    with pytest.raises(ArtifactError):
        store.open(key, "out.txt")
    assert not store.verify().ok
    commit(store, file)
    assert not blob.is_symlink()
    assert (tmp_path / "copy").read_text() == "content"

    (tmp_path / "moved").mkdir()
    blob.rename(tmp_path / "moved" / blob.name)
    blob.parent.rmdir()
    blob.parent.symlink_to(tmp_path / "moved")
    assert store.find(key) is None, "the right bytes, but behind a link"
    blob.parent.unlink()
    commit(store, file)

    manifest = store.manifest(key)
    (tmp_path / "manifest").write_bytes(manifest.read_bytes())
    manifest.unlink()
    manifest.symlink_to(tmp_path / "manifest")
    assert store.find(key) is None
    commit(store, file)
    assert not manifest.is_symlink()

    (tmp_path / "ref").write_text(f"{key}\n")
    (store.root / "refs" / "linked").symlink_to(tmp_path / "ref")
    assert "linked" not in store.refs()

    (store.root / "refs" / "folder").symlink_to(outside)
    with pytest.raises(ArtifactError):
        store.tag("folder/x", key)
    (store.root / "work").mkdir()
    (store.root / "work" / key).symlink_to(outside)
    with pytest.raises(ArtifactError):
        store.work(key)
    with pytest.raises(ArtifactError):
        store.drop_work(key)
    blob.unlink()
    blob.parent.rmdir()
    blob.parent.symlink_to(outside)
    with pytest.raises(ArtifactError):
        commit(store, file)
    store.gc(delete=True, grace=0, work_days=0)
    assert not list(outside.iterdir())

    target = tmp_path / "out"
    target.mkdir()
    blob.parent.unlink()
    nested = store.commit(
        make_key("n", 1, {}, {}),
        {"sub/x": file},
        stage="n",
        version=1,
        sections={},
        inputs={},
        provenance={},
        checks={},
    )
    (target / "sub").symlink_to(outside)
    with pytest.raises(ArtifactError):
        store.export(nested.key, target)
    assert not list(outside.iterdir())
