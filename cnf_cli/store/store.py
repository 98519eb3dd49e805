"""The store: key -> manifest and digest -> bytes, correct without locks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cnf_cli.errors import ArtifactError, did_you_mean
from cnf_cli.store import bundle, disk, garbage, upkeep
from cnf_cli.store.export import copy_out
from cnf_cli.store.manifest import CAP, FORMAT, Input, Manifest, Output, check_name, is_hash
from cnf_cli.store.reports import Lineage, Report, Sweep, Usage

_CLAIMED = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{16})?")
_ATTEMPTS = 5  # a commit is repeated when a gc beside it takes a file away; once is already rare


class Store:
    """A folder of artifacts. Opening never writes; the first commit, tag or work folder creates what is missing."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        for part in (self.root, *(self.root / name for name in ("objects", "stages", "refs"))):
            if os.path.lexists(part) and not (part.is_dir() and os.access(part, os.R_OK | os.X_OK)):
                why = "permission denied" if part.is_dir() else "not a folder"
                hint = "ask its owner for `chmod -R g+rX`, or use another store: `--store FOLDER` or CNF_STORE"
                raise ArtifactError(f"cannot read the store {self.root}: {why}", at=str(part), hint=hint)
        self._initialised()

    # ---- where things are

    def blob(self, sha256: str) -> Path:
        """Where these bytes are, if they are."""
        return self.root / "objects" / sha256[:2] / sha256

    def manifest(self, key: str) -> Path:
        """Where this key's manifest is, if it is."""
        return self.root / "stages" / key[:2] / f"{key}.json"

    def _initialised(self) -> bool:
        path = self.root / "format"
        try:
            text = disk.read(path, 64)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ArtifactError(f"cannot read the store {self.root}: {error.strerror}", at=str(path)) from error
        if not text.endswith(b"\n") or not text[:-1].isdigit():
            raise ArtifactError(
                "the store's format file is damaged", at=str(path), hint=f"it should hold the line {FORMAT}"
            )
        if int(text) != FORMAT:
            message = f"the store has format {int(text)}, this version of cnf knows format {FORMAT}"
            raise ArtifactError(message, at=str(path), hint="upgrade cnf, or use another store: `--store FOLDER`")
        return True

    def _prepare(self) -> None:
        """The store's folders exist; the format file comes last, so a half-made store is completed later."""
        if not self._initialised():
            disk.fan_out(self.root, ("objects", "stages"))
            temp = disk.spool(disk.folder(self.root, "refs"), [b"%d\n" % FORMAT])
            disk.publish(temp, self.root, "format")

    # ---- reading

    def read(self, key: str) -> Manifest | None:
        """The manifest of a key if it is intact, whether or not its blobs are."""
        if not is_hash(key):
            return None
        try:
            found = Manifest.parse(disk.read(self.manifest(key), CAP))
        except (OSError, ValueError):
            return None
        return found if found.key == key else None

    def find(self, key: str) -> Manifest | None:
        """The manifest of a finished artifact with all its bytes present; None, never an error, for anything less."""
        found = self.read(key)
        if found and all(disk.size(self.blob(out.sha256)) == out.size for out in found.outputs.values()):
            return found
        return None

    def open(self, key: str, name: str) -> Path:
        """The path of one output, to be read only."""
        outputs = self._need(key).outputs
        if name not in outputs:
            near = did_you_mean(name, list(outputs))
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(outputs)) or 'none'}"
            raise ArtifactError(f"artifact {key[:12]} has no output {name!r}", hint=hint)
        path = self.blob(outputs[name].sha256)
        if disk.size(path) != outputs[name].size:
            hint = "run the command that made it again; `cnf verify` lists everything that is damaged"
            raise ArtifactError(
                f"output {name!r} of artifact {key[:12]} is missing or damaged", at=str(path), hint=hint
            )
        if not os.access(path, os.R_OK):
            raise ArtifactError(f"output {name!r} of artifact {key[:12]} is not readable for you", at=str(path))
        return path

    def checked(self, key: str, name: str) -> Path:
        """As `open`, and its bytes are those that were stored; wrong ones are set aside, which makes a miss of it."""
        path = self.open(key, name)
        fault = upkeep.fault(self, self._need(key).outputs[name].sha256)
        if fault is not None:
            hint = "run the same command again, and what made it runs again; or ask `cnf verify --deep`"
            raise ArtifactError(f"output {name!r} of artifact {key[:12]} is damaged: {fault}", at=str(path), hint=hint)
        return path

    def _need(self, key: str) -> Manifest:
        found = self.read(key)
        if found is None:
            state = "not in the store"
            if is_hash(key) and os.path.lexists(path := self.manifest(key)):
                state = "damaged" if os.access(path, os.R_OK) else "not readable for you"
            hint = "`cnf ls` lists what is there; the command that made it makes it again"
            raise ArtifactError(f"artifact {key[:12]} is {state}", at=str(self.root), hint=hint)
        return found

    def resolve(self, text: str) -> str:
        """The full key for a key, an alias or an unambiguous prefix of four or more hex digits."""
        if is_hash(text) and os.path.lexists(self.manifest(text)):
            return text
        refs = upkeep.read_refs(self)
        if text in refs:
            if (key := refs[text]) is None:
                raise ArtifactError(
                    f"the alias {text!r} is damaged", at=str(self.root), hint=f"`cnf tag {text} KEY` repairs it"
                )
            return key
        keys = [key for key, _ in upkeep.listed_keys(self)]
        found = [key for key in keys if key.startswith(text)] if len(text) >= 4 else []
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(key[:12] for key in sorted(found)[:5])
            raise ArtifactError(
                f"{text!r} is ambiguous: {len(found)} artifacts start with it", hint=f"give more digits of {shown}"
            )
        near = did_you_mean(text, [*refs, *(key[: len(text)] for key in keys if len(text) >= 4)])
        hint = f"did you mean {near!r}? " if near else ""
        raise ArtifactError(
            f"no artifact or alias {text[:80]!r}", at=str(self.root), hint=hint + "`cnf ls` lists what is there"
        )

    def manifests(self, stage: str | None = None) -> Iterator[Manifest]:
        """Readable manifests, the last finished first; file times, which every use renews, only break ties."""
        times = {key: info.st_mtime_ns for key, info in upkeep.listed_keys(self)}
        found = [one for key in sorted(times) if (one := self.read(key)) and stage in (None, one.stage)]
        yield from sorted(found, key=lambda one: (one.finished, times[one.key]), reverse=True)

    def refs(self) -> dict[str, str]:
        """Alias -> key; damaged refs are left out (`verify` lists them)."""
        return {alias: key for alias, key in upkeep.read_refs(self).items() if key}

    # ---- writing

    def commit(
        self,
        key: str,
        files: Mapping[str, Path],
        *,
        stage: str,
        version: int,
        sections: Mapping[str, Any],
        inputs: Mapping[str, Input],
        provenance: Mapping[str, Any],
        checks: Mapping[str, Any],
    ) -> Manifest:
        """Copies of the files are in the store, then the manifest; after a failure nothing new is visible."""
        about = (dict(inputs), dict(sections), dict(provenance), dict(checks))
        empty = {check_name(name, "output name"): Output("0" * 64, 0) for name in files}
        if len(Manifest(stage, key, version, empty, *about).check().dump()) > CAP:  # before the first byte is copied
            raise ValueError(f"a manifest of more than {CAP} bytes: put large results into a file")
        need = sum(Path(path).stat().st_size for path in files.values() if Path(path).exists())
        with disk.explained("store the artifact", self.root, need):
            self._prepare()
            for _ in range(_ATTEMPTS):
                made = Manifest(stage, key, version, {name: self._put(path) for name, path in files.items()}, *about)
                for i in inputs.values():
                    upkeep.refresh(self, i.key)
                # A long copy may outlive gc's grace: make every blob young again before naming it, look again after.
                if all(disk.touch(self.blob(out.sha256)) for out in made.outputs.values()):
                    self._write(made.dump(), "stages", key[:2], f"{key}.json")
                    if self.find(key):
                        return made
        raise ArtifactError(
            f"artifact {key[:12]} does not stay in the store",
            at=str(self.root),
            hint="stop the `cnf gc` running beside",
        )

    def _put(self, source: Path) -> Output:
        """A copy is in the store under its hash, in place of an older one, which may be damaged or about to go."""
        digest, size = hashlib.sha256(), 0

        def hashed() -> Iterator[bytes]:
            nonlocal size
            for block in _source(source):
                digest.update(block)
                size += len(block)
                yield block

        temp = disk.spool(disk.folder(self.root, "objects"), hashed())
        sha256 = digest.hexdigest()
        disk.publish(temp, self.root, "objects", sha256[:2], sha256)
        return Output(sha256, size)

    def _write(self, data: bytes, *parts: str) -> None:
        disk.publish(disk.spool(disk.folder(self.root, *parts[:-1]), [data]), self.root, *parts)

    def tag(self, alias: str, key: str) -> None:
        """The alias names this artifact, and gc keeps it with all its inputs."""
        check_name(alias, "alias")
        if self.refs().get(alias) == key and self.find(key):
            return
        with disk.explained(f"tag {alias}", self.root):
            self._prepare()
            if not (self.find(key) and upkeep.refresh(self, key)):
                self._need(key)
                raise ArtifactError(
                    f"artifact {key[:12]} is incomplete", hint="run the command that made it again, or `cnf verify`"
                )
            try:
                disk.prune(self.root / "refs" / alias)  # folders that untag left empty
                self._write(f"{key}\n".encode(), "refs", *alias.split("/"))
            except (IsADirectoryError, NotADirectoryError) as error:
                hint = "an alias cannot be a folder of aliases too: `cnf untag` the other, or choose another name"
                raise ArtifactError(f"cannot tag {alias!r}", at=str(error.filename), hint=hint) from error

    def untag(self, alias: str) -> None:
        """The alias is gone; its artifact stays until gc finds it unused."""
        check_name(alias, "alias")
        path = self.root / "refs" / alias
        if alias not in (known := upkeep.read_refs(self)):
            near = did_you_mean(alias, list(known))
            raise ArtifactError(
                f"no alias {alias!r}", hint=f"did you mean {near!r}?" if near else "`cnf ls` lists aliases"
            )
        with disk.explained(f"untag {alias}", self.root):
            self._initialised()
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)

    def work(self, key: str) -> Path:
        """The folder for this key's unfinished run exists; what an earlier run left is still in it."""
        if not is_hash(key):
            raise ValueError(f"not a key: {key!r}")
        with disk.explained("make a work folder", self.root):
            self._prepare()
            return disk.folder(self.root, "work", key)

    def turn(self, key: str) -> Path:
        """The file that whoever works on this key holds locked; the folder for it exists. See `claim`."""
        if not is_hash(key):
            raise ValueError(f"not a key: {key!r}")
        with disk.explained("make a work folder", self.root):
            self._prepare()
            return disk.folder(self.root, "work") / f"{key}.lock"

    def drop_work(self, name: str) -> None:
        """The work folder of this key, or the claimed folder of this name, is gone."""
        if not _CLAIMED.fullmatch(name):
            raise ValueError(f"not a key: {name!r}")
        with disk.explained("remove a work folder", self.root):
            disk.remove_tree(self.root / "work" / name)

    def export(self, key: str, dest: Path, *, overwrite: bool = False) -> list[Path]:
        """Copies of all outputs are in `dest` under their names, checked against their hashes while copying."""
        outputs = self._need(key).outputs
        sources = {name: self.open(key, name) for name in sorted(outputs)}
        return copy_out(sources, outputs, Path(dest).absolute(), overwrite=overwrite)

    def send(self, key: str, dest: Path, *, overwrite: bool = False) -> list[Path]:
        """The artifact, its manifest and all it was made from are in a folder, or in one file if its name is *.tar."""
        self._need(key)
        if self.find(key) is None:
            self.export(key, dest)  # raises the error that says which output is damaged
        sources, dest = bundle.contents(self, key), Path(dest).absolute()
        if dest.suffix == ".tar":
            return bundle.write_tar(sources, dest, overwrite=overwrite)
        files = {name: path for name, (path, _) in sources.items()}
        return copy_out(files, {name: out for name, (_, out) in sources.items()}, dest, overwrite=overwrite)

    def take_in(self, path: Path, check: Callable[[str, Path], None], *, replace: bool = False) -> Manifest:
        """What `send` wrote is in this store with the same key and history; `check` may refuse a file."""
        return bundle.take_in(self, bundle.read(Path(path).absolute()), check, replace=replace)

    # ---- upkeep

    def lineage(self, key: str) -> Lineage:
        """The artifact and, by input name, everything it was made from; a missing one has no manifest."""
        return upkeep.lineage(self, key)

    def du(self, keep_days: float = 0) -> Usage:
        """What the store holds and how much of it gc would free."""
        return upkeep.du(self, keep_days)

    def verify(self, deep: bool = False) -> Report:
        """Everything wrong in the store; `deep` rehashes and sets wrong blobs aside, so that their stages run again."""
        with disk.explained("verify", self.root):
            return upkeep.verify(self, deep)

    def gc(
        self, delete: bool = False, keep_days: float = 0, *, grace: float = garbage.HOUR, work_days: float = 7
    ) -> Sweep:
        """What no alias reaches, itself or as an input, and nobody renewed for `keep_days` and `grace` seconds."""
        with disk.explained("collect garbage", self.root):
            if not self._initialised():  # never sweep a folder that is not a store
                return Sweep(delete)
            return garbage.gc(self, delete, keep_days, grace, work_days)


def _source(path: Path) -> Iterator[bytes]:
    blocks = disk.chunks(path, follow=True)
    while True:
        try:
            block = next(blocks)
        except StopIteration:
            return
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror}", at=str(path)) from error
        yield block
