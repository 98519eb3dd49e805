"""An artifact outside a store, as a folder or a tar: its files, its manifest, and the same of all it was made from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cnf_cli.errors import ArtifactError
from cnf_cli.store import disk, tar, upkeep
from cnf_cli.store.export import checked
from cnf_cli.store.manifest import CAP, Manifest, Output

if TYPE_CHECKING:
    from cnf_cli.store.store import Store

MANIFEST = "manifest.json"
SEALED = b'{"seal": "'
_MAX_MANIFESTS = 10_000
_MAX_TEXT = 4 * CAP
_DEEPEST = 100
_ANCESTOR = re.compile(r"lineage/([0-9a-f]{64})/manifest\.json")
_HINT = "export it again: `cnf export ID FOLDER`"


def contents(store: Store, key: str) -> dict[str, tuple[Path, Output]]:
    """Name in the export -> file and what its bytes must be; ancestors that are not whole in the store are left out."""
    found: dict[str, tuple[Path, Output]] = {}
    for one in _ancestry(store, key):
        place = "" if one.key == key else f"lineage/{one.key}/"
        raw = disk.read(store.manifest(one.key), CAP)
        if place + MANIFEST in found or MANIFEST in one.outputs:
            raise ArtifactError(f"artifact {one.key[:12]} has an output called {MANIFEST}, the name of an export's own")
        found[place + MANIFEST] = store.manifest(one.key), Output(hashlib.sha256(raw).hexdigest(), len(raw))
        found |= {place + name: (store.blob(out.sha256), out) for name, out in one.outputs.items()}
    return dict(sorted(found.items()))


def _ancestry(store: Store, key: str) -> list[Manifest]:
    """The artifact and everything whole that it was made from, each once."""
    seen: dict[str, Manifest] = {}
    todo = [key]
    while todo:
        one = store.find(todo.pop())
        if one is not None and one.key not in seen:
            seen[one.key] = one
            todo += [source.key for source in one.inputs.values()]
    return list(seen.values())


def write_tar(sources: Mapping[str, tuple[Path, Output]], dest: Path, *, overwrite: bool) -> list[Path]:
    """One archive of all the files; equal artifacts give equal bytes."""
    if os.path.lexists(dest) and not overwrite:
        hint = "choose another name, or overwrite with --force"
        raise ArtifactError("the file exists already", at=str(dest), hint=hint)
    with disk.explained("export", dest.parent, sum(out.size for _, out in sources.values())):
        disk.fan_out(dest.parent, ())
        return [disk.publish(disk.spool(dest.parent, _archive(sources), 0o666), dest.parent, dest.name)]


def _archive(sources: Mapping[str, tuple[Path, Output]]) -> Iterator[bytes]:
    for name, (path, want) in sources.items():
        yield tar.header(name, want.size)
        yield from checked(disk.chunks(path), want, name, str(path))
        yield tar.padding(want.size)
    yield tar.END


@dataclass(frozen=True)
class Export:
    """What an exported folder or archive holds, by name, still unread."""

    at: Path
    sizes: Mapping[str, int]
    blocks: Callable[[str], Iterator[bytes]]

    def manifest(self, name: str) -> Manifest:
        """The sealed manifest of that name."""
        if self.sizes[name] > CAP:
            raise ArtifactError(f"{name} has more than {CAP} bytes", at=str(self.at), hint=_HINT)
        try:
            return Manifest.parse(b"".join(self.blocks(name)))
        except ValueError as error:
            raise ArtifactError(f"{name} is no manifest of an artifact: {error}", at=str(self.at), hint=_HINT) from None


def is_export(path: Path) -> bool:
    """Whether this is a folder with a sealed manifest, or a tar archive."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return next(disk.chunks(path / MANIFEST), b"").startswith(SEALED)
        return next(disk.chunks(path, follow=True), b"")[257:262] == b"ustar"
    return False


def read(path: Path) -> Export:
    """The export in a folder, or in a tar of one."""
    with disk.explained("read the export", path):
        if path.is_dir():
            sizes = {file.relative_to(path).as_posix(): found.st_size for file, found in disk.walk(path)}
            return Export(path, sizes, lambda name: disk.chunks(path / name))
        try:
            with path.open("rb") as file:
                spans = tar.index(file)
        except ValueError as error:
            raise ArtifactError(f"{path.name} is no export: {error}", at=str(path), hint=_HINT) from None
    top = "" if MANIFEST in spans else next((n[: -len(MANIFEST)] for n in spans if _below_one(n)), "")
    named = {name[len(top) :]: span for name, span in spans.items() if name.startswith(top)}
    return Export(path, {n: span.size for n, span in named.items()}, lambda name: tar.blocks(path, named[name]))


def _below_one(name: str) -> bool:
    return name.count("/") == 1 and name.endswith(f"/{MANIFEST}")


def take_in(store: Store, export: Export, check: Callable[[str, Path], None], *, replace: bool) -> Manifest:
    """The exported artifact is in the store under its own key, after everything it was made from.

    `check` looks at every file that is new here before a manifest names it, and raises if it cannot be used.
    """
    if MANIFEST not in export.sizes:
        hint = "an export has a manifest.json; other archives: unpack them and import what is inside"
        raise ArtifactError(f"{export.at.name} holds no exported artifact", at=str(export.at), hint=hint)
    top = export.manifest(MANIFEST)
    ours = store.find(top.key)
    if ours is not None and ours.digest != top.digest and not replace:
        hint = "the same settings gave other bytes elsewhere; --force takes the exported ones"
        raise ArtifactError(f"the store has another result as {top.key[:12]}", at=str(export.at), hint=hint)
    for one, place in _oldest_first(export, top):
        have = store.find(one.key)
        if have is None or (one.key == top.key and have.digest != top.digest):
            _put(store, export, one, place, check)
    return top


def _oldest_first(export: Export, top: Manifest) -> list[tuple[Manifest, str]]:
    """The artifact last, before it what it was made from and the export holds, and where their files are."""
    names = {found[1]: name for name in export.sizes if (found := _ANCESTOR.fullmatch(name))}
    if len(names) > _MAX_MANIFESTS or sum(export.sizes[name] for name in names.values()) > _MAX_TEXT:
        raise ArtifactError(f"{export.at.name} has too many manifests", at=str(export.at), hint=_HINT)
    order: dict[str, tuple[Manifest, str]] = {}

    def grow(one: Manifest, place: str, above: int) -> None:
        if above > _DEEPEST:
            raise ArtifactError(f"{export.at.name} has too long a history", at=str(export.at), hint=_HINT)
        for key in sorted({source.key for source in one.inputs.values()} & names.keys() - order.keys()):
            made = export.manifest(names[key])
            if made.key != key:
                raise ArtifactError(f"{names[key]} is of another artifact", at=str(export.at), hint=_HINT)
            grow(made, names[key][: -len(MANIFEST)], above + 1)
        order[one.key] = one, place

    grow(top, "", 0)
    return list(order.values())


def _put(store: Store, export: Export, made: Manifest, place: str, check: Callable[[str, Path], None]) -> None:
    with disk.explained("import the artifact", store.root, sum(out.size for out in made.outputs.values())):
        store._prepare()
        for name, out in sorted(made.outputs.items()):
            if export.sizes.get(place + name) != out.size:
                what = "missing" if place + name not in export.sizes else "of another size"
                raise ArtifactError(f"{place + name} is {what}", at=str(export.at), hint=_HINT)
            data = checked(_readable(export, place + name), out, place + name, str(export.at))
            temp = disk.spool(disk.folder(store.root, "objects"), data)
            try:
                check(name, temp)
            except BaseException:
                disk.unlink(temp)
                raise
            disk.publish(temp, store.root, "objects", out.sha256[:2], out.sha256)
        for source in made.inputs.values():
            upkeep.refresh(store, source.key)
        store._write(made.dump(), "stages", made.key[:2], f"{made.key}.json")


def _readable(export: Export, name: str) -> Iterator[bytes]:
    try:
        yield from export.blocks(name)
    except ValueError as error:
        raise ArtifactError(f"{name} cannot be read: {error}", at=str(export.at), hint=_HINT) from None
