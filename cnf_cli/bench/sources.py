"""Find benchmark instances: in the user's folder, in the store, in this package; and say what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cnf_cli.bench.embedded import embedded, origins
from cnf_cli.bench.libraries import Choice, Known, Library, digest
from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Dataset
from cnf_cli.formats.item import Item, items_of
from cnf_cli.formats.sandbox import read_safely


@dataclass(frozen=True)
class Gathered:
    """What was found of what was wanted."""

    library: Library
    items: list[Item]
    """In the wanted order, each with its best known cost."""
    missing: list[str]
    notes: list[str] = field(default_factory=list)


def gather(choice: Choice, folder: Path | None, stored: Path | None, *, coordinates: bool = True) -> Gathered:
    """The wanted instances, each from the first source that has it; `stored` is the store's data.h5 of this library.

    Where nothing but the embedded set is there and the user named no instances, all of that set is taken.
    """
    library = choice.library
    files = {} if folder is None else files_in(folder, library)
    kept = {} if stored is None else {item.name: item for item in items_of(dataset.load(stored))}
    inside = embedded(library.problem)
    wanted = choice.names([*files, *kept])
    here = {name: files[name] for name in wanted if name in files}
    found = {item.name: item for item in read_files(list(here.values()), library)} if here else {}
    notes = [f"{len(found)} instances from {folder}"] if found else []
    for where, source in (("the store", kept), ("the embedded set", inside)):
        more = {name: source[name] for name in wanted if name in source and name not in found}
        notes += [f"{len(more)} instances from {where}"] if more else []
        found |= more
    missing = [name for name in wanted if name not in found]
    if not choice.named and missing and not here and not kept:
        found = {name: item for name, item in inside.items() if choice.least <= item.nodes <= choice.most}
        notes = [f"the embedded set of {len(found)} instances"] if found else []
    order = [*(n for n in wanted if n in found), *(n for n in found if n not in wanted)]
    items = [known_item(found[name], library, notes) for name in order]
    items = [item for item in items if choice.least <= item.nodes <= choice.most]
    bare = [item.name for item in items if item.xy is None]
    if coordinates and bare and library.problem != "atsp":
        notes.append(f"without coordinates, so no policy can be measured on them: {', '.join(bare)}")
        items = [item for item in items if item.xy is not None]
    notes += _of_the_paper(items, library) if not choice.named else []
    if not items:
        raise ArtifactError(
            f"no instance of {library.name} is here{': ' + ', '.join(missing[:5]) if missing else ''}",
            hint=f"`cnf bench fetch {library.name}`, or --bench-dir FOLDER with {library.name}/*{library.suffix} in it",
        )
    return Gathered(library, items, missing, notes)


def _of_the_paper(items: Sequence[Item], library: Library) -> list[str]:
    """How many of the instances the paper measured, where not all: their mean is then not the paper's."""
    shared = sum(item.name in library.paper for item in items)
    if not items or not library.paper or shared == len(items):
        return []
    few = "1 instance is" if shared else "no instance is"
    told = f"{shared} of the {len(items)} instances are" if shared > 1 else few
    return [f"{told} among the paper's {len(library.paper)}: a mean over all is not the paper's"]


def files_in(folder: Path, library: Library) -> dict[str, Path]:
    """Instance name -> file, in FOLDER/tsplib, or in FOLDER itself where the files lie there."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}", hint="check --bench-dir or CNF_BENCH_DIR")
    inner = folder / library.name
    where = inner if inner.is_dir() else folder
    return {path.stem: path for path in sorted(where.glob(f"*{library.suffix}")) if path.is_file()}


def read_files(paths: Sequence[Path], library: Library) -> list[Item]:
    """The instances in these files, read in a child process."""
    found = read_safely(list(paths), library.problem)
    assert isinstance(found, Dataset)
    return items_of(found)


def known_item(item: Item, library: Library, notes: list[str]) -> Item:
    """The instance with its best known cost, if it is the library's own instance of that name."""
    known = library.known.get(item.name, Known())
    if known.sha256 and digest(item) != known.sha256:
        notes.append(f"{item.name} is not the library's instance of that name: its best known cost is not used")
        known = Known()
    cost = float("nan") if known.best is None else float(known.best)
    proved = library.proved and known.best is not None
    if known.best is not None:
        item.no_proof_is_beaten(cost, proved, f"{library.name}'s {library.what}")
    return replace(item, cost=cost, proved=proved, tour=())


def origin(name: str) -> str | None:
    """Where an embedded instance was taken from."""
    return origins().get(name)
