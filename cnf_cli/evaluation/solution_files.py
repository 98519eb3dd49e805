"""Where `cnf solve --write-sol` writes: a file of its own for every instance, none over what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cnf_cli.regular_files import explained, refuse_taken

if TYPE_CHECKING:
    from cnf_cli.formats.item import Item


def planned(folder: Path | None, items: Sequence[Item], *, force: bool) -> list[Path | None]:
    """Each instance's file, before anything is solved; instances of one name are numbered."""
    if folder is None:
        return [None] * len(items)
    used: set[str] = set()
    files = [folder / _own(item, used) for item in items]
    refuse_taken(files, force=force)
    with explained(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
    return list(files)


def _own(item: Item, used: set[str]) -> str:
    """A name that no earlier instance has, also where a disk does not tell capitals from small letters."""
    stem = "".join(c if c.isalnum() or c in "._-" else "_" for c in item.name)[:100] or "instance"
    suffix = ".tour" if item.demand is None else ".sol"
    number, name = 1, stem + suffix
    while name.casefold() in used:
        number += 1
        name = f"{stem}-{number}{suffix}"
    used.add(name.casefold())
    return name


def write(path: Path, item: Item, tour: Sequence[int], cost: float) -> None:
    """The tour is in the file, as TSPLIB or VRPLIB have it."""
    from cnf_cli.formats.tours import write_sol, write_tour

    if item.demand is not None:
        write_sol(path, tour, cost, item.ids)
    else:
        write_tour(path, path.stem, tour, item.ids, cost)
