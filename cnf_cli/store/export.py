"""Outputs copied out of the store, checked against their hashes on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from cnf_cli.errors import ArtifactError
from cnf_cli.store import disk
from cnf_cli.store.manifest import Output


def copy_out(sources: Mapping[str, Path], outputs: Mapping[str, Output], dest: Path, *, overwrite: bool) -> list[Path]:
    """Copies of all outputs are in `dest` under their names; none is, where one of those names is taken."""
    taken = [str(dest / name) for name in sources if os.path.lexists(dest / name)]
    if taken and not overwrite:
        raise ArtifactError(
            f"{len(taken)} of the files exist already",
            at=taken[0],
            hint="choose another folder, or overwrite with --force",
        )
    with disk.explained("export", dest, sum(out.size for out in outputs.values())):
        disk.fan_out(dest, ())
        return [_copy(source, outputs[name], dest, name) for name, source in sources.items()]


def checked(data: Iterator[bytes], want: Output, name: str, at: str) -> Iterator[bytes]:
    """The blocks; an ArtifactError at their end if they are not what the manifest promises."""
    digest, size = hashlib.sha256(), 0
    for block in data:
        digest.update(block)
        size += len(block)
        if size > want.size:
            break
        yield block
    if digest.hexdigest() != want.sha256 or size != want.size:
        hint = "`cnf verify --deep`, then run the command that made it again"
        raise ArtifactError(f"output {name!r} is damaged", at=at, hint=hint)


def _copy(source: Path, want: Output, dest: Path, name: str) -> Path:
    *folders, last = name.split("/")
    place = disk.folder(dest, *folders)
    data = checked(disk.chunks(source), want, name, str(source))
    return disk.publish(disk.spool(place, data, 0o666), place, last)
