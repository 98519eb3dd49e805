"""Looking after a store: refs, lineage, use of space, verification."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cnf_cli.errors import RecipeError
from cnf_cli.store import disk
from cnf_cli.store.manifest import check_name, is_hash
from cnf_cli.store.reports import Lineage, Problem, Report, Usage

if TYPE_CHECKING:
    from cnf_cli.store.store import Store

_DEEPEST = 100  # of a lineage; only a forged one is deeper


def listed_keys(store: Store) -> Iterator[tuple[str, os.stat_result]]:
    """Every key that has a manifest file in its place, readable or not."""
    for path, found in disk.walk(store.root / "stages"):
        if is_hash(path.stem) and path == store.manifest(path.stem):
            yield path.stem, found


def listed_blobs(store: Store) -> Iterator[tuple[str, os.stat_result]]:
    """Every blob in its place, needed or not."""
    for path, found in disk.walk(store.root / "objects"):
        if is_hash(path.name) and path == store.blob(path.name):
            yield path.name, found


def lost_folders(store: Store) -> list[Path]:
    """Folders of a finished store that are not there; its format file was written after them."""
    return [path for path in (store.root / top for top in ("refs", "stages", "objects")) if not path.is_dir()]


def read_refs(store: Store) -> dict[str, str | None]:
    """Alias -> key, or None where the file does not hold exactly one key."""
    found: dict[str, str | None] = {}
    top = store.root / "refs"
    for path, _ in disk.walk(top):
        alias = path.relative_to(top).as_posix()
        with contextlib.suppress(RecipeError, FileNotFoundError):
            check_name(alias)
            try:
                text = disk.read(path, 100).decode("ascii", "replace")
            except FileNotFoundError:
                raise
            except OSError:
                text = ""
            found[alias] = text[:-1] if text.endswith("\n") and is_hash(text[:-1]) else None
    return found


def lineage(store: Store, key: str) -> Lineage:
    """The tree above a key; shared ancestors are shared nodes, a forged cycle ends as missing."""
    done: dict[str, Lineage] = {}

    def grow(key: str, above: tuple[str, ...]) -> Lineage:
        if key not in done:
            found = None if key in above or len(above) > _DEEPEST else store.read(key)
            inputs = found.inputs if found else {}
            node = Lineage(key, found, {name: grow(i.key, (*above, key)) for name, i in sorted(inputs.items())})
            if found is None:
                return node
            done[key] = node
        return done[key]

    return grow(key, ())


def refresh(store: Store, key: str) -> bool:
    """Everything a key reaches is young, so a gc already at work leaves it; False if some of it is gone."""
    seen: set[str] = set()

    def young(node: Lineage) -> bool:
        if node.manifest is None or node.key in seen:
            return node.manifest is not None
        seen.add(node.key)
        for child in node.children.values():
            young(child)
        paths = [store.blob(out.sha256) for out in node.manifest.outputs.values()]
        return all(disk.touch(path) for path in (*paths, store.manifest(node.key)))

    return young(lineage(store, key))


def du(store: Store, keep_days: float) -> Usage:
    """See Store.du."""
    sizes = {sha256: found.st_size for sha256, found in listed_blobs(store)}
    stages: dict[str, set[str]] = {}
    for made in store.manifests():
        stages.setdefault(made.stage, set()).update(out.sha256 for out in made.outputs.values())
    by_stage = {stage: sum(sizes.get(sha256, 0) for sha256 in names) for stage, names in sorted(stages.items())}
    work = sum(found.st_size for _, found in disk.walk(store.root / "work"))
    garbage = 0 if lost_folders(store) else store.gc(keep_days=keep_days).bytes
    return Usage(len(sizes), sum(sizes.values()), by_stage, work, garbage)


def verify(store: Store, deep: bool) -> Report:
    """See Store.verify."""
    checked, problems = 0, []
    if os.path.lexists(store.root / "format"):
        problems += [Problem("missing folder", path, []) for path in lost_folders(store)]
    users: dict[str, list[str]] = {}
    wrong: dict[str, str] = {}
    for key, _ in listed_keys(store):
        checked += 1
        made = store.read(key)
        if made is None and os.path.lexists(store.manifest(key)):
            what = "damaged manifest" if os.access(store.manifest(key), os.R_OK) else "unreadable manifest"
            problems.append(Problem(what, store.manifest(key), [key]))
        for out in made.outputs.values() if made else ():
            users.setdefault(out.sha256, []).append(key)
            if disk.size(store.blob(out.sha256)) != out.size:
                missing = not os.path.lexists(store.blob(out.sha256))
                wrong[out.sha256] = "missing blob" if missing else "blob of the wrong size"
    for sha256, _ in listed_blobs(store):
        checked += 1
        if deep and (said := fault(store, sha256)):
            wrong.pop(sha256, None)
            problems.append(Problem(said, store.blob(sha256), sorted(set(users.get(sha256, [])))))
    for sha256, what in wrong.items():
        # Look again: a gc or a commit beside this one may have removed or repaired both ends.
        left = [key for key in users[sha256] if store.read(key) and not store.find(key)]
        if left:
            problems.append(Problem(what, store.blob(sha256), sorted(set(left))))
    for alias, ref in read_refs(store).items():
        checked += 1
        path = store.root / "refs" / alias
        if ref is None:
            problems.append(Problem("damaged alias", path, []))
        elif not os.path.lexists(store.manifest(ref)):
            problems.append(Problem("alias of a missing artifact", path, [ref]))
    return Report(checked, problems)


def fault(store: Store, sha256: str) -> str | None:
    """What is wrong with a blob's bytes; wrong ones are set aside as NAME.bad, and their artifacts become misses."""
    path, digest = store.blob(sha256), hashlib.sha256()
    try:
        before = os.lstat(path).st_ino
        for block in disk.chunks(path):
            digest.update(block)
        if digest.hexdigest() == sha256 or os.lstat(path).st_ino != before:  # another: just repaired by a commit
            return None
        what = "blob with the wrong content"
    except FileNotFoundError:
        return None
    except PermissionError:
        return "blob you may not read"
    except OSError as error:
        what = f"unreadable blob: {error.strerror}"
    with contextlib.suppress(OSError):  # a read-only store can still be checked
        disk.set_aside(path, f"{sha256}.bad")
    return what
