"""Take in what `cnf export` wrote elsewhere: the same artifact, with its history, after a look at every file."""

from __future__ import annotations

from pathlib import Path

from cnf_cli.errors import ArtifactError, CnfError
from cnf_cli.store import Manifest, Store


def take_in(store: Store, path: Path, *, replace: bool = False) -> Manifest:
    """The artifact in an exported folder or tar is in the store under its own id."""
    return store.take_in(path, usable, replace=replace)


def usable(name: str, path: Path) -> None:
    """A data set or a checkpoint that its reader refuses is refused here; data sets are read in a child process."""
    from cnf_cli.formats import checkpoint
    from cnf_cli.formats.sandbox import read_safely

    try:
        if name.endswith(".h5"):
            read_safely([path])
        elif name.endswith(".safetensors"):
            checkpoint.load(path)
    except CnfError as error:
        raise ArtifactError(f"{name} in the export cannot be used: {error.message}", hint=error.hint) from error
