"""Whatever files a user gives, as one data set or one checkpoint: what `cnf import` and `cnf solve` read with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats import csv, dataset, legacy, sets, tours, tsplib
from cnf_cli.formats.dataset import Attr, Block, Dataset
from cnf_cli.formats.item import LARGEST, Item, collect, items_of, places
from cnf_cli.formats.sniff import refuse, sniff

MAX_FILES = 100_000
INSTANCE_KINDS = ("tsp", "atsp", "vrp")
TOUR_KINDS = ("tour", "sol")
_FOLDER = (".tsp", ".atsp", ".vrp", ".tour", ".sol", ".csv", ".pkl")
_TOUR_NAME = re.compile(r"(\.opt)?\.(tour|sol)$", re.IGNORECASE)
_ORDER = "order"
# The ATSP generator's file names carry the factor that made its real weights whole numbers.
_SCALED = re.compile(r"problem_\d+_\d+_([1-9]\d{0,8})_\d+")


def read_any(
    paths: Sequence[Path],
    problem: str | None = None,
    capacity: float | None = None,
    solutions: Path | None = None,
    said: legacy.Untold = legacy.Untold(),  # noqa: B008 - it is frozen
    on_file: Callable[[Path], None] = lambda _: None,
    *,
    order: bool = False,
) -> Dataset | legacy.Checkpoint:
    """One data set of all instances, or one checkpoint; `on_file` hears of every file before it is opened.

    `order`: the set tells which place its instances had in the files, for `as_given`.
    """
    files, _ = expand([Path(p) for p in paths])
    kinds = []
    for file in files:
        on_file(file)
        kinds.append(sniff(file))
    for kind in ("torch", "hdf5"):
        if kind in kinds and len(files) > 1:
            raise DataError(f"{files[kinds.index(kind)].name} must be imported alone", at=str(files[kinds.index(kind)]))
    if kinds == ["torch"]:
        on_file(files[0])
        return legacy.load_checkpoint(files[0], said)
    if kinds == ["hdf5"] and solutions is None:
        return _require(_judged(dataset.load(files[0]), files[0]), problem)
    reader = _Reader(problem, capacity, on_file)
    items = reader.instances(files, kinds)
    if solutions is not None:
        on_file(solutions)
        items, solver = _with_solutions(items, solutions)
    else:
        items, solver = _unscale(items, None), "published" if any(item.tour for item in items) else ""
    attrs = _attrs(files, reader.notes)
    attrs |= {_ORDER: " ".join(map(str, places(items)))} if order else {}
    return _require(collect(items, solver=solver, attrs=attrs), problem)


def as_given(found: Dataset) -> list[Item]:
    """The instances in the order of their files, of a data set that was read with `order`."""
    items = items_of(found)
    at = [int(word) for word in str(found.attrs.get(_ORDER, "")).split() if word.isdecimal()]
    if sorted(at) != list(range(len(items))):  # an HDF5 file's own blocks are its order
        return items
    return [item for _, item in sorted(zip(at, items, strict=True), key=lambda pair: pair[0])]


def expand(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Files as given, folders replaced by their known files in lexicographic order; and the names left out."""
    files: list[Path] = []
    skipped: list[str] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted((p for p in path.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)
        known = [p for p in inside if p.suffix.lower() in _FOLDER and p.is_file()]
        skipped += [p.name for p in inside if p not in set(known)]
        if not known:
            raise DataError(f"no instance files in {path.name}", at=str(path), hint=f"known: {' '.join(_FOLDER)}")
        files += known
    if not files or len(files) > MAX_FILES:
        raise DataError(f"{len(files)} files given, expected 1 to {MAX_FILES}")
    return files, skipped


class _Reader:
    def __init__(self, problem: str | None, capacity: float | None, on_file: Callable[[Path], None]) -> None:
        self.problem, self.capacity, self.on_file = problem, capacity, on_file
        self.notes: list[str] = []

    def instances(self, files: Sequence[Path], kinds: Sequence[str]) -> list[Item]:
        """Every instance in the files, in order, with the tours given beside them."""
        if self.capacity is not None and "csv" not in kinds:
            raise DataError("a capacity is only for CSV files: other files hold their own", hint="leave it out")
        items: list[Item] = []
        for file, kind in zip(files, kinds, strict=True):
            self.on_file(file)
            if kind not in TOUR_KINDS:
                items += self.one(file, kind)
        if not items:
            raise DataError(
                f"{files[0].name} is a tour without its instance",
                at=str(files[0]),
                hint="give the .tsp or .vrp file too",
            )
        self.notes += [f"{item.name}: {note}" for item in items for note in item.notes]
        return self.with_tours(items, [f for f, kind in zip(files, kinds, strict=True) if kind in TOUR_KINDS])

    def one(self, file: Path, kind: str) -> list[Item]:
        if kind in INSTANCE_KINDS:
            return [tsplib.read(file)]
        if kind == "csv":
            return [csv.read(file, self.capacity, self.problem)]
        if kind == "hdf5":
            return items_of(_judged(dataset.load(file), file))
        if kind == "pickle":
            found = sets.read_pickle(file)
            if isinstance(found, sets.Solutions):
                raise DataError(
                    f"{file.name} holds solutions, not instances",
                    at=str(file),
                    hint=f"`cnf import DATA.pkl --solutions {file.name}`",
                )
            return found
        if kind == "safetensors":
            raise DataError(
                f"{file.name} is a safetensors checkpoint, not data", at=str(file), hint="`cnf ls` lists yours"
            )
        raise refuse(file, kind)

    def with_tours(self, items: list[Item], files: Sequence[Path]) -> list[Item]:
        place = {item.name: k for k, item in enumerate(items)}
        for file in files:
            self.on_file(file)
            k = place.get(_TOUR_NAME.sub("", file.name))
            if k is None:
                self.notes.append(f"{file.name} has no instance here")
            else:
                items[k] = tours.read_reference(file, items[k])
        return items


def _judged(found: Dataset, file: Path) -> Dataset:
    """The data set of a file that anyone may have written: places in bounds, references judged and costed again."""
    for block in found.blocks:
        for name in ("xy", "matrix", "capacity"):
            value = getattr(block, name)
            if value is not None and np.abs(value).max() > LARGEST:
                raise DataError(f"{name} holds a number too large to square", at=str(file), hint="rescale the data")
        _check_ids(block, file)
    blocks = tuple(_with_judged(block, found.problem, file) for block in found.blocks)
    return replace(found, blocks=blocks)


def _check_ids(block: Block, file: Path) -> None:
    ids = block.extra.get("ids")
    if ids is None:
        return
    plain = ids.shape == (len(block), block.nodes) and ids.dtype.kind == "i" and ids.min() >= 0
    if not plain or any(len(np.unique(row)) < block.nodes for row in ids):
        raise DataError("its node numbers are no different whole numbers, one for each node", at=str(file))


def _with_judged(block: Block, problem: str, file: Path) -> Block:
    if block.cost is None and block.tour is None:
        if block.proved is not None and block.proved.any():
            raise DataError("it claims proofs and holds no references", at=str(file), hint="leave `proved` out")
        return block
    cost = np.full(len(block), np.nan) if block.cost is None else block.cost.copy()
    for i, item in enumerate(items_of(Dataset(problem, (block,)))):
        name, claimed = item.name or f"instance {i}", None if np.isnan(cost[i]) else float(cost[i])
        if claimed is not None and not 0 <= claimed < LARGEST:
            raise DataError(f"the reference of {name} costs {claimed:g}", at=str(file), hint="costs are not negative")
        if item.proved and claimed is None and not item.tour:
            raise DataError(f"{name} is said to be proved optimal, and has no reference", at=str(file))
        if item.tour:
            cost[i] = replace(item, name=name).with_reference(item.tour, claimed, item.proved, at=str(file)).cost
    return replace(block, cost=cost)


def _with_solutions(items: list[Item], path: Path) -> tuple[list[Item], str]:
    kind = sniff(path)
    if kind in TOUR_KINDS and len(items) == 1:
        return [tours.read_reference(path, items[0])], "published"
    if kind != "pickle":
        raise refuse(path, kind)
    found = sets.read_pickle(path)
    if not isinstance(found, sets.Solutions):
        raise DataError(f"{path.name} holds instances, not solutions", at=str(path), hint="swap the two files")
    return found.attach(_unscale(items, found)), found.solver


def _unscale(items: list[Item], found: sets.Solutions | None) -> list[Item]:
    """ATSP matrices in real weights where their files store them multiplied to whole numbers."""
    if not items or items[0].problem != "atsp":
        return items
    names = [_SCALED.fullmatch(item.name) for item in items]
    factors = [float(name[1]) for name in names if name]
    if len(factors) < len(items):
        factors = [_factor(items[0], found)] * len(items)
    return [
        item if factor == 1 or item.matrix is None else replace(item, matrix=item.matrix / factor)
        for item, factor in zip(items, factors, strict=True)
    ]


def _factor(item: Item, found: sets.Solutions | None) -> float:
    if found is None or not found.costs or found.costs[0] <= 0:
        return 1.0
    tour = found.tours[0][:-1] if len(found.tours[0]) == item.nodes + 1 else found.tours[0]
    ratio = item.re_cost(tour) / found.costs[0]
    return 1e6 if abs(ratio / 1e6 - 1) < 1e-2 else 1.0


def _attrs(files: Sequence[Path], notes: Sequence[str]) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {"source": _brief([file.name for file in files])}
    if notes:
        attrs["notes"] = _brief(list(dict.fromkeys(notes)))
    return attrs


def _brief(words: Sequence[str], most: int = 20) -> str:
    text = ", ".join(word[:200] for word in words[:most])
    return f"{text} and {len(words) - most} more" if len(words) > most else text


def _require(found: Dataset, problem: str | None) -> Dataset:
    if problem not in (None, found.problem):
        raise DataError(
            f"these files hold {found.problem}, not {problem}", hint=f"use `{found.problem}`, or leave it out"
        )
    return found
