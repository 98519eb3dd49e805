"""What the store answers when nothing goes wrong, and what it says when the question is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnf_cli.errors import ArtifactError, RecipeError
from cnf_cli.store import Input, Manifest, Store, make_key
from tests.reliability.store_kit import snapshot

DAY = 86400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(
    store: Store, files: dict[str, str], stage: str = "demo", inputs: dict[str, Manifest] | None = None, **sections: Any
) -> Manifest:
    """An artifact with these texts as files."""
    paths = {}
    for name, text in files.items():
        path = store.root.parent / "source" / stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths[name] = path
    links = {name: Input(m.key, m.digest) for name, m in (inputs or {}).items()}
    key = make_key(stage, 1, sections, {name: i.digest for name, i in links.items()})
    return store.commit(
        key, paths, stage=stage, version=1, sections=sections, inputs=links, provenance={"seconds": 0.5}, checks={}
    )


def old(store: Store, days: float) -> None:
    for path in store.root.rglob("*"):
        os.utime(path, (time.time() - days * DAY,) * 2)


# ---- keys

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_a_key_does_not_depend_on_order_and_survives_json(sections: dict[str, Any]) -> None:
    """The order of settings and a round trip through JSON leave the key alone."""
    key = make_key("demo", 1, sections, {})
    assert key == make_key("demo", 1, dict(reversed(sections.items())), {})
    assert key == make_key("demo", 1, json.loads(json.dumps(sections)), {})


def test_every_part_enters_the_key() -> None:
    """Another stage, version, setting, type of setting, input name or input content is another key."""
    base: tuple[Any, ...] = ("a", 1, {"x": {"y": 1}}, {"i": "0" * 64})
    others: list[tuple[Any, ...]] = [
        ("b", *base[1:]),
        ("a", 2, *base[2:]),
        ("a", 1, {"x": {"y": 2}}, base[3]),
        ("a", 1, {"x": {"y": 1.0}}, base[3]),
        ("a", 1, {"x": {"y": "1"}}, base[3]),
        ("a", 1, {"x": {"z": 1}}, base[3]),
        ("a", 1, base[2], {"j": "0" * 64}),
        ("a", 1, base[2], {"i": "1" * 64}),
        ("a", 1, base[2], {}),
    ]
    assert len({make_key(*parts) for parts in (base, *others)}) == 10
    text = '{"inputs":{"i":"' + "0" * 64 + '"},"sections":{"x":{"y":1}},"stage":"a","version":1}'
    assert make_key(*base) == hashlib.sha256(text.encode()).hexdigest(), "the documented form"


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        (1, 2),
        {1, 2},
        b"x",
        Path("x"),
        object(),
        {1: 2},
        {None: 1},
        [{"a": (1,)}],
    ],
)
def test_what_json_cannot_hold_is_refused_in_a_key(value: Any) -> None:
    """NaN, infinities and types JSON would bend are refused, and the place is named."""
    with pytest.raises(ValueError, match=r"key\.sections\.deep\.setting"):
        make_key("demo", 1, {"deep": {"setting": value}}, {})


def test_the_digest_is_of_names_and_bytes_only(store: Store) -> None:
    """Equal files give equal digests whatever made them; another name or byte does not."""
    one, two = put(store, {"a": "x", "b": "y"}, n=1), put(store, {"b": "y", "a": "x"}, n=2)
    assert one.key != two.key
    assert one.digest == two.digest
    assert (
        len({one.digest, put(store, {"a": "x", "c": "y"}, n=3).digest, put(store, {"a": "x", "b": "z"}, n=4).digest})
        == 3
    )


# ---- commit, find, open


def test_commit_copies_and_find_gives_it_back(store: Store) -> None:
    """The manifest reads back equal, the bytes are right, and the user's file is an independent copy."""
    made = put(store, {"a.txt": "hello", "sub/b.txt": ""}, n=[1, 2.5, None, "é"])
    assert store.find(made.key) == made == Store(store.root).find(made.key)
    assert store.open(made.key, "a.txt").read_text() == "hello"
    assert store.open(made.key, "sub/b.txt").read_text() == ""
    source = store.root.parent / "source/demo/a.txt"
    assert source.read_text() == "hello"
    assert source.stat().st_nlink == 1
    source.write_text("other")
    assert store.open(made.key, "a.txt").read_text() == "hello"
    assert not os.stat(store.open(made.key, "a.txt")).st_mode & 0o222, "blobs are marked read-only"


def test_opening_and_asking_write_nothing(tmp_path: Path) -> None:
    """A store that does not exist answers everything, and still does not exist."""
    store = Store(tmp_path / "none")
    assert store.find("0" * 64) is None
    assert list(store.manifests()) == []
    assert store.refs() == {}
    assert store.verify(deep=True).ok
    assert store.gc(delete=True).removed == []
    assert store.du().bytes == 0
    assert store.lineage("0" * 64).manifest is None
    store.drop_work("0" * 64)
    with pytest.raises(ArtifactError):
        store.resolve("x")
    assert not store.root.exists()


@pytest.mark.parametrize("key", ["", "x", "../x", "0" * 63, "A" * 64, "0" * 64 + "\n", "\0"])
def test_find_is_a_miss_for_anything_that_is_no_key(store: Store, key: str) -> None:
    """Never an exception, even for text that is no key."""
    put(store, {"a": "x"})
    assert store.find(key) is None
    with pytest.raises(ValueError, match="key"):
        store.work(key)
    with pytest.raises(ValueError, match="key"):
        store.drop_work(key)


def test_a_commit_with_a_key_of_other_settings_is_refused(store: Store, tmp_path: Path) -> None:
    """A manifest always proves its own key; nothing is written otherwise, nor for NaN in what is recorded."""
    (tmp_path / "f").write_text("x")
    parts: dict[str, Any] = {
        "stage": "demo",
        "version": 1,
        "sections": {"n": 1},
        "inputs": {},
        "provenance": {},
        "checks": {},
    }
    good = make_key("demo", 1, {"n": 1}, {})
    with pytest.raises(ValueError, match="key"):
        store.commit("0" * 64, {"f": tmp_path / "f"}, **parts)
    with pytest.raises(ValueError, match=r"checks\.gap"):
        store.commit(good, {"f": tmp_path / "f"}, **parts | {"checks": {"gap": float("nan")}})
    with pytest.raises(ValueError, match="bytes"):
        store.commit(good, {"f": tmp_path / "f"}, **parts | {"provenance": {"log": "x" * (17 << 20)}})
    with pytest.raises(ValueError, match="stage"):
        store.commit(
            make_key("No Stage", 1, {}, {}), {"f": tmp_path / "f"}, **parts | {"stage": "No Stage", "sections": {}}
        )
    assert not store.root.exists()


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_a_source_that_is_no_file_is_an_error(store: Store, tmp_path: Path, kind: str) -> None:
    """Missing files, folders and pipes are named, without waiting for the pipe; nothing is left behind."""
    path = tmp_path / "thing"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(ArtifactError, match="cannot read") as caught:
        store.commit(
            make_key("demo", 1, {}, {}),
            {"f": path},
            stage="demo",
            version=1,
            sections={},
            inputs={},
            provenance={},
            checks={},
        )
    assert caught.value.at == str(path)
    assert list(store.manifests()) == []
    assert store.du().objects == 0
    assert not list(store.root.rglob(".*.tmp"))


def test_every_part_of_a_manifest_is_sealed(store: Store) -> None:
    """A changed number in the provenance, which nothing else depends on, makes the manifest a miss."""
    made = put(store, {"a": "x"})
    path = store.manifest(made.key)
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw.replace(b'"seconds": 0.5', b'"seconds": 0.4'))
    assert path.read_bytes() != raw
    assert store.find(made.key) is None
    path.write_bytes(raw)
    assert store.find(made.key) == made


def test_a_manifest_of_another_format_or_key_is_a_miss(store: Store) -> None:
    """Correctly sealed, but from the future or under another artifact's name: not an answer to this question."""
    one, two = put(store, {"a": "x"}, n=1), put(store, {"a": "y"}, n=2)
    raw = store.manifest(one.key).read_bytes()
    store.manifest(two.key).unlink()
    store.manifest(two.key).write_bytes(raw)
    assert store.find(two.key) is None
    assert [p.artifacts for p in store.verify().problems] == [[two.key]]
    rest = raw.split(b"\n", 1)[1].replace(b'"format": 1', b'"format": 2')
    store.manifest(one.key).unlink()
    store.manifest(one.key).write_bytes(b'{"seal": "%s",\n%s' % (hashlib.sha256(rest).hexdigest().encode(), rest))
    assert store.find(one.key) is None


def test_open_says_what_is_wrong(store: Store) -> None:
    """Unknown artifact, unknown output (with a suggestion), lost blob: each has its own message and a hint."""
    made = put(store, {"weights.bin": "x", "log.txt": "y"})
    with pytest.raises(ArtifactError, match="not in the store"):
        store.open("0" * 64, "x")
    with pytest.raises(ArtifactError, match=r"no output 'weight\.bin'") as caught:
        store.open(made.key, "weight.bin")
    assert "weights.bin" in str(caught.value.hint)
    store.open(made.key, "log.txt").unlink()
    with pytest.raises(ArtifactError, match="missing or damaged") as caught:
        store.open(made.key, "log.txt")
    assert caught.value.hint
    assert caught.value.code == 3
    assert store.open(made.key, "weights.bin")
    assert store.find(made.key) is None


# ---- names for artifacts


def test_resolve_takes_keys_prefixes_and_aliases(store: Store) -> None:
    """All three give the full key; three digits, unknown and ambiguous texts are errors that help."""
    made = [put(store, {"a": str(n)}, n=n) for n in range(40)]
    key = made[0].key
    store.tag("demo/train", key)
    assert store.resolve(key) == store.resolve(key[:16]) == store.resolve("demo/train") == key
    for text, hint in (("demo/trian", "demo/train"), (key[:3], "cnf ls"), ("0" * 64, "cnf ls"), ("zzzz", "cnf ls")):
        with pytest.raises(ArtifactError) as caught:
            store.resolve(text)
        assert hint in str(caught.value.hint)
    twin = store.manifest(key[:10] + "f" * 54)
    twin.write_text("{}")
    with pytest.raises(ArtifactError, match="ambiguous: 2") as caught:
        store.resolve(key[:8])
    assert key[:12] in str(caught.value.hint)
    assert store.resolve(key[:11]) == key
    store.tag(key[:8], made[1].key)
    assert store.resolve(key[:8]) == made[1].key, "an alias is what its owner says, not a prefix"


def test_tags_move_and_go(store: Store) -> None:
    """An alias can be moved, removed, and turned from a folder of aliases into an alias once that is empty."""
    one, two = put(store, {"a": "1"}, n=1), put(store, {"a": "2"}, n=2)
    store.tag("x/y/z", one.key)
    store.tag("x/y/z", two.key)
    assert store.refs() == {"x/y/z": two.key}
    with pytest.raises(ArtifactError, match="cannot tag"):
        store.tag("x", one.key)
    with pytest.raises(ArtifactError, match="cannot tag"):
        store.tag("x/y/z/more", one.key)
    assert store.refs() == {"x/y/z": two.key}
    store.untag("x/y/z")
    store.tag("x", one.key)
    assert store.refs() == {"x": one.key}
    with pytest.raises(ArtifactError, match="no alias 'xx'"):
        store.untag("xx")
    with pytest.raises(ArtifactError, match="not in the store"):
        store.tag("gone", "0" * 64)
    store.open(two.key, "a").unlink()
    with pytest.raises(ArtifactError, match="incomplete"):
        store.tag("half", two.key)
    with pytest.raises(RecipeError):
        store.tag("Bad", one.key)


@pytest.mark.parametrize(
    "change", [lambda k: k, lambda k: k + "x", lambda k: k + "\n\n", lambda k: k.upper() + "\n", lambda k: ""]
)
def test_a_ref_is_one_key_and_a_line_end(store: Store, change: Callable[[str], str]) -> None:
    """Anything else is damaged: verify says so, the alias does not resolve, tagging again repairs it."""
    made = put(store, {"a": "x"})
    store.tag("demo", made.key)
    path = store.root / "refs" / "demo"
    path.unlink()
    path.write_text(change(made.key))
    assert store.refs() == {}
    assert [p.path for p in store.verify().problems] == [path]
    with pytest.raises(ArtifactError, match="damaged") as caught:
        store.resolve("demo")
    assert "cnf tag demo" in str(caught.value.hint)
    store.tag("demo", made.key)
    assert store.resolve("demo") == made.key


def test_manifests_come_newest_first(store: Store) -> None:
    """Sorted by time of writing, filtered by stage, unreadable ones left out."""
    keys = []
    for n, stage in enumerate(["train", "evaluate", "train"]):
        keys.append(put(store, {"a": str(n)}, stage=stage, n=n).key)
        os.utime(store.manifest(keys[-1]), (1e9 + n, 1e9 + n))
    assert [m.key for m in store.manifests()] == keys[::-1]
    assert [m.key for m in store.manifests("train")] == [keys[2], keys[0]]
    store.manifest(keys[2]).unlink()
    store.manifest(keys[2]).write_text("{")
    assert [m.key for m in store.manifests()] == [keys[1], keys[0]]


# ---- lineage, space, garbage, export


def test_lineage_is_a_tree_with_gaps_named(store: Store) -> None:
    """Inputs by name, shared ancestors shared, a lost one without manifest, a forged cycle cut."""
    base = put(store, {"a": "0"}, stage="pretrain")
    left, right = (put(store, {"a": s}, stage="attack", inputs={"model": base}, side=s) for s in "lr")
    top = put(store, {"a": "t"}, stage="evaluate", inputs={"left": left, "right": right})
    tree = store.lineage(top.key)
    assert tree.manifest == top
    assert list(tree.children) == ["left", "right"]
    assert tree.children["left"].children["model"] is tree.children["right"].children["model"]
    store.manifest(left.key).unlink()
    gap = store.lineage(top.key).children["left"]
    assert (gap.key, gap.manifest, gap.children) == (left.key, None, {})
    forged = Manifest(**{**vars(base), "inputs": {"me": Input(base.key, base.digest)}})
    forged = Manifest(**{**vars(forged), "key": make_key("pretrain", 1, {}, {"me": base.digest})})
    forged = Manifest(**{**vars(forged), "inputs": {"me": Input(forged.key, base.digest)}})
    store.manifest(forged.key).write_bytes(forged.dump())
    assert store.lineage(forged.key).children["me"].manifest is None
    assert store.gc().removed == []


def test_du_adds_up(store: Store) -> None:
    """Shared bytes count once in all, and for each stage that names them; garbage is what gc would free."""
    kept = put(store, {"a": "x" * 100, "b": "shared"}, stage="train")
    gone = put(store, {"a": "y" * 50, "b": "shared"}, stage="attack")
    (store.work(kept.key) / "state").write_text("z" * 7)
    store.tag("keep", kept.key)
    used = store.du()
    assert (used.objects, used.bytes, used.work_bytes, used.garbage_bytes) == (3, 156, 7, 0)
    assert used.by_stage == {"train": 106, "attack": 56}
    old(store, 1.5)
    assert store.du().garbage_bytes == 50 + store.manifest(gone.key).stat().st_size + 7


def test_gc_keeps_what_aliases_reach_and_reports_before_it_deletes(store: Store) -> None:
    """A trial run and a real one name the same files; inputs of tagged artifacts stay; young and kept days stay."""
    base = put(store, {"a": "base"}, stage="pretrain")
    top = put(store, {"a": "top"}, stage="train", inputs={"model": base})
    dead = put(store, {"a": "dead", "b": "top"}, stage="attack")
    store.tag("top", top.key)
    old(store, 3)
    assert store.gc(delete=True, keep_days=4).removed == []
    trial = store.gc()
    assert not trial.deleted
    assert {d.path for d in trial.removed} == {store.manifest(dead.key), store.blob(dead.outputs["a"].sha256)}
    assert store.find(dead.key)
    real = store.gc(delete=True, keep_days=2)
    assert real.removed == trial.removed
    assert real.bytes == trial.bytes > 0
    assert store.find(dead.key) is None
    assert store.find(top.key)
    assert store.find(base.key)
    assert store.verify(deep=True).ok
    young = put(store, {"a": "young"}, stage="attack", inputs={"model": put(store, {"a": "b2"}, stage="pretrain", n=2)})
    assert store.gc(delete=True).removed == []
    old_input = young.inputs["model"].key
    os.utime(store.manifest(old_input), (1e9, 1e9))
    assert store.gc(delete=True).removed == [], "what a young artifact was made from is in use"


def test_gc_sweeps_leftovers_and_stale_work_only(store: Store) -> None:
    """Old temporary files go after a day, finished work after a day, unfinished after a week, foreign files never."""
    made = put(store, {"a": "x"})
    store.tag("keep", made.key)
    other = make_key("demo", 1, {"n": 9}, {})
    for key in (made.key, other):
        (store.work(key) / "state").write_text("state")
    temp = store.root / "objects" / ".0123456789abcdef.tmp"
    foreign = [
        store.root / "objects" / ".DS_Store",
        store.root / "notes.tmp",
        store.root / "work" / "readme",
        store.root / "refs" / "X",
    ]
    for path in (temp, *foreign):
        path.write_text("x")
    old(store, 0.9)
    assert store.gc(delete=True).removed == []
    old(store, 2)
    assert {d.path for d in store.gc(delete=True).removed} == {temp, store.root / "work" / made.key}
    old(store, 8)
    assert store.gc(delete=True, keep_days=9).removed == []
    assert [d.path for d in store.gc(delete=True).removed] == [store.root / "work" / other]
    assert all(path.exists() for path in foreign)
    assert store.find(made.key)


@pytest.mark.parametrize("lost", ["refs", "stages", "objects"])
def test_gc_refuses_where_a_folder_of_the_store_is_missing(store: Store, lost: str) -> None:
    """Without aliases everything looks dead: nothing is removed, verify says what is missing, and so does the error."""
    made = put(store, {"a": "x"})
    store.tag("keep", made.key)
    old(store, 30)
    shutil.move(store.root / lost, store.root.parent / lost)
    before = snapshot(store.root)
    with pytest.raises(ArtifactError, match=f"lost its folder {lost}") as caught:
        store.gc(delete=True)
    assert f"mkdir {store.root / lost}" in str(caught.value.hint)
    assert snapshot(store.root) == before
    assert "missing folder" in {problem.what for problem in store.verify().problems}
    assert store.du().garbage_bytes == 0
    shutil.move(store.root.parent / lost, store.root / lost)
    assert store.verify(deep=True).ok
    assert store.gc(delete=True).removed == []


def test_gc_leaves_a_folder_that_is_no_store_alone(tmp_path: Path) -> None:
    """Pointed at the wrong folder, gc removes nothing, whatever its files are called."""
    victim = tmp_path / "objects" / "ab" / ("ab" + "0" * 62)
    victim.parent.mkdir(parents=True)
    victim.write_text("mine")
    os.utime(victim, (1e9, 1e9))
    assert Store(tmp_path).gc(delete=True).removed == []
    assert victim.exists()


def test_work_folders_last_until_dropped(store: Store) -> None:
    """What a run left is there for the next; dropping takes it away, twice without complaint."""
    key = make_key("demo", 1, {}, {})
    (store.work(key) / "deep").mkdir()
    (store.work(key) / "deep" / "state").write_text("1")
    assert (store.work(key) / "deep" / "state").read_text() == "1"
    assert store.work(key) == store.root / "work" / key
    store.drop_work(key)
    store.drop_work(key)
    assert not (store.root / "work" / key).exists()


def test_export_copies_by_name_and_does_not_overwrite(store: Store, tmp_path: Path) -> None:
    """Files appear under their names, writable; existing ones stay unless told, links are replaced not followed."""
    made = put(store, {"b.txt": "b", "sub/a.txt": "a"})
    out = tmp_path / "new" / "out"
    assert store.export(made.key, out) == [out / "b.txt", out / "sub" / "a.txt"]
    assert (out / "sub/a.txt").read_text() == "a"
    assert os.stat(out / "b.txt").st_mode & 0o200
    (out / "b.txt").write_text("edited")
    with pytest.raises(ArtifactError, match="exist already") as caught:
        store.export(made.key, out)
    assert caught.value.at == str(out / "b.txt")
    assert (out / "b.txt").read_text() == "edited"
    assert store.open(made.key, "b.txt").read_text() == "b"
    (tmp_path / "precious").write_text("precious")
    (out / "b.txt").unlink()
    (out / "b.txt").symlink_to(tmp_path / "precious")
    store.export(made.key, out, overwrite=True)
    assert (out / "b.txt").read_text() == "b"
    assert (tmp_path / "precious").read_text() == "precious"
    with pytest.raises(ArtifactError, match="not in the store"):
        store.export("0" * 64, out)


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be is said to be one."""
    (tmp_path / "f").write_text("")
    with pytest.raises(ArtifactError, match="not a folder"):
        Store(tmp_path / "f")


def test_a_root_that_is_a_link_works(tmp_path: Path) -> None:
    """Users put stores on other disks through a link; only links inside a store are refused."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = Store(tmp_path / "link")
    assert store.find(put(store, {"a": "x"}).key)
    assert (tmp_path / "real" / "format").read_text() == "1\n"


def test_the_store_needs_no_torch() -> None:
    """Importing it in a fresh process loads neither torch nor numpy."""
    code = "import sys, cnf_cli.store; sys.exit(bool({'torch', 'numpy', 'h5py'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent.parent).returncode == 0
