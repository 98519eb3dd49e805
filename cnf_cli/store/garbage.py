"""Collecting garbage beside running commands: only what no alias reaches and nobody renewed lately."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cnf_cli.errors import ArtifactError
from cnf_cli.store import disk, upkeep
from cnf_cli.store.manifest import is_hash
from cnf_cli.store.reports import Dead, Sweep
from cnf_cli.store.upkeep import listed_blobs, listed_keys, read_refs

if TYPE_CHECKING:
    from cnf_cli.store.store import Store

HOUR, DAY = 3600.0, 86400.0
KEEP_DAYS = 7.0
"""So long `cnf gc` leaves what no alias names: what a plain command made, such as an import."""


def gc(store: Store, delete: bool, keep_days: float, grace: float, work_days: float) -> Sweep:
    """See Store.gc. Manifests go before the blobs they name, so an interrupted gc leaves no false promise."""
    _refuse_without_folders(store)
    now, sweep = time.time(), Sweep(delete)
    cutoff = now - max(grace, keep_days * DAY)
    stages, blobs = dict(listed_keys(store)), dict(listed_blobs(store))
    live, kept = _reached(store, [key for key, found in stages.items() if found.st_mtime > cutoff], sweep)
    if not sweep.notes:
        for key in sorted(stages.keys() - live):
            _sweep(sweep, "manifest", store.manifest(key), stages[key], cutoff)
        for sha256 in sorted(blobs.keys() - kept):
            _sweep(sweep, "blob", store.blob(sha256), blobs[sha256], cutoff)
    for path, found in [item for top in ("objects", "stages", "refs") for item in disk.walk(store.root / top)]:
        if disk.TEMP.fullmatch(path.name):
            _sweep(sweep, "leftover", path, found, now - DAY)
        elif path.suffix == ".bad" and is_hash(path.stem):
            _sweep(sweep, "leftover", path, found, cutoff)
    _sweep_work(store, sweep, now, DAY * max(work_days, keep_days))
    return sweep


def _refuse_without_folders(store: Store) -> None:
    """Aliases keep artifacts, manifests keep blobs: without their folders nobody can say what is dead."""
    lost = upkeep.lost_folders(store)
    if lost:
        raise ArtifactError(
            f"the store has lost its folder {lost[0].name}: nothing is collected",
            at=str(lost[0]),
            hint=f"put it back from a copy; `mkdir {lost[0]}` says that what it held may go",
        )


def _sweep_work(store: Store, sweep: Sweep, now: float, keep: float) -> None:
    """Work folders untouched for `keep` seconds go; those of finished artifacts after a day, as locks without one."""
    for path in sorted((store.root / "work").glob("*")):
        key, _, rest = path.name.partition(".")
        if path.is_symlink() or not is_hash(key):
            continue
        if rest == "lock" and not path.with_name(key).exists():
            with contextlib.suppress(FileNotFoundError):
                _sweep(sweep, "work", path, path.lstat(), now - DAY)
        if not path.is_dir():
            continue
        files = [found for _, found in disk.walk(path)]
        with contextlib.suppress(FileNotFoundError):
            newest = max([path.lstat().st_mtime, *(found.st_mtime for found in files)])
            if newest < now - (DAY if store.read(key) else keep):
                sweep.removed.append(Dead("work", path, sum(found.st_size for found in files)))
                if sweep.deleted:
                    disk.remove_tree(path)


def _sweep(sweep: Sweep, what: str, path: Path, found: os.stat_result, cutoff: float) -> None:
    if found.st_mtime <= cutoff and (not sweep.deleted or disk.remove(path, cutoff)):
        sweep.removed.append(Dead(what, path, found.st_size))


def _reached(store: Store, young: list[str], sweep: Sweep) -> tuple[set[str], set[str]]:
    """Keys and blobs that aliases and young manifests reach; damage on the way is noted: then nobody can be sure."""
    live: set[str] = set()
    kept: set[str] = set()
    todo = list(young)
    for alias, ref in read_refs(store).items():
        if ref is None:
            sweep.notes.append(
                f"the alias {alias!r} is damaged: artifacts and blobs are left alone until it is tagged again"
            )
        else:
            todo.append(ref)
    while todo:
        if (key := todo.pop()) in live:
            continue
        live.add(key)
        made = store.read(key)
        if made:
            kept.update(out.sha256 for out in made.outputs.values())
            todo += [i.key for i in made.inputs.values()]
        elif os.path.lexists(store.manifest(key)):
            sweep.notes.append(
                f"artifact {key[:12]} is in use and damaged: run its stage again, or untag it, to collect garbage"
            )
    return live, kept
