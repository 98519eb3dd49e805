"""A data set: instances with their reference tours, in memory as numpy and on disk as one HDF5 file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnf_cli.errors import DataError
from cnf_cli.problems.distance import RULES
from cnf_cli.problems.load import limit

Array = NDArray[Any]
Attr = str | int | float
WORD = re.compile(r"[a-z0-9_]{1,64}")
MAX_NAME = 200
_DTYPES = {"xy": "f8", "demand": "f8", "capacity": "f8", "matrix": "f8", "cost": "f8", "tour": "i4", "proved": "?"}
ARRAYS = tuple(_DTYPES)
_NEEDS = {"tsp": (), "cvrp": ("demand", "capacity"), "atsp": ("matrix",)}


@dataclass(frozen=True, eq=False)
class Block:
    """b instances of equal size n and one distance rule; anything else is refused when it is made."""

    xy: Array | None = None
    """float64 (b, n, 2), original coordinates; with a depot, node 0 is the depot."""
    demand: Array | None = None
    """float64 (b, n), units; 0 at the depot."""
    capacity: Array | None = None
    """float64 (b,), units."""
    matrix: Array | None = None
    """float64 (b, n, n); matrix[:, i, j] is the cost of going from i to j."""
    names: tuple[str, ...] = ()
    """b names; '' where an instance has none."""
    cost: Array | None = None
    """float64 (b,), reference cost; NaN where unknown."""
    tour: Array | None = None
    """int32 (b, t), reference tour padded with -1; with a depot it starts with 0 and 0 separates routes."""
    proved: Array | None = None
    """bool (b,), whether the reference is proved optimal."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Further arrays with one row per instance, float or int."""
    rule: str = "euclid"
    """How distances follow from coordinates: one of `problems.distance.RULES`."""

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, np.ascontiguousarray(value, dtype=dtype))
        object.__setattr__(self, "names", tuple(self.names) or ("",) * len(self))
        object.__setattr__(self, "extra", {k: _extra(k, self.extra[k]) for k in sorted(self.extra)})
        _check_shapes(self)
        _check_values(self)

    @property
    def _first(self) -> Array:
        first = self.xy if self.xy is not None else self.matrix
        if first is None or first.ndim != 3:
            raise DataError("a block needs coordinates (b, n, 2) or a matrix (b, n, n)")
        return first

    def __len__(self) -> int:
        return int(self._first.shape[0])

    @property
    def nodes(self) -> int:
        """n, the depot included."""
        return int(self._first.shape[1])

    def tour_of(self, i: int) -> list[int] | None:
        """Instance i's reference tour without padding, None where there is none."""
        if self.tour is None:
            return None
        row = self.tour[i]
        return [int(v) for v in row[row >= 0]] or None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Instances of one problem, one block per size and rule."""

    problem: str
    blocks: tuple[Block, ...]
    solver: str = ""
    """Who made the reference tours."""
    attrs: dict[str, Attr] = field(default_factory=dict)
    """Where the instances come from: generator, seed, source, notes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if not WORD.fullmatch(self.problem):
            raise DataError(f"{self.problem!r} is not the name of a problem", hint="`cnf list problems`")
        if not self.blocks:
            raise DataError("a data set needs at least one instance")
        for need in _NEEDS.get(self.problem, ()):
            if any(getattr(block, need) is None for block in self.blocks):
                raise DataError(f"an instance of {self.problem} has no {need}")
        for key, value in self.attrs.items():
            if not WORD.fullmatch(key) or isinstance(value, bool) or not isinstance(value, str | int | float):
                raise DataError(f"attribute {key!r} of a data set must be a plain word with a text or a number")
            if isinstance(value, float) and not np.isfinite(value):
                raise DataError(f"attribute {key!r} of a data set is not finite")

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    def instances(self) -> Iterator[tuple[Block, int]]:
        """Every instance as (its block, its row)."""
        for block in self.blocks:
            for i in range(len(block)):
                yield block, i


def save(path: Path | str, dataset: Dataset) -> None:
    """Afterwards `path` is an HDF5 file of the whole data set; equal data give equal bytes."""
    from cnf_cli.formats import hdf5

    hdf5.save(path, dataset)


def load(path: Path | str) -> Dataset:
    """The data set in an HDF5 file; any other or damaged file is a `DataError`."""
    from cnf_cli.formats import hdf5

    return hdf5.load(path)


def _extra(name: str, value: Array) -> Array:
    if not WORD.fullmatch(name):
        raise DataError(f"extra array {name!r}: names are made of a-z, 0-9 and _")
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        return np.ascontiguousarray(value, dtype="i8" if value.dtype.itemsize > 4 else "i4")
    if value.dtype.kind == "f":
        return np.ascontiguousarray(value, dtype="f4" if value.dtype.itemsize == 4 else "f8")
    raise DataError(f"extra array {name!r} holds {value.dtype}, only floats and integers are stored")


def _check_shapes(block: Block) -> None:
    b, n = len(block), block.nodes
    want: dict[str, tuple[int, ...]] = {
        "xy": (b, n, 2),
        "demand": (b, n),
        "capacity": (b,),
        "matrix": (b, n, n),
        "cost": (b,),
        "proved": (b,),
    }
    for name, shape in want.items():
        value = getattr(block, name)
        if value is not None and value.shape != shape:
            raise DataError(f"{name} has shape {value.shape}, expected {shape}")
    if block.tour is not None and (block.tour.ndim != 2 or len(block.tour) != b):
        raise DataError(f"tour has shape {block.tour.shape}, expected ({b}, t)")
    if b < 1 or len(block.names) != b:
        raise DataError(f"{len(block.names)} names for {b} instances")
    if n < 2:
        raise DataError(f"an instance needs at least 2 nodes, not {n}")
    if block.rule not in RULES or (block.rule == "explicit") != (block.matrix is not None):
        raise DataError(f"distance rule {block.rule!r} does not go with this block", hint=f"rules: {', '.join(RULES)}")
    if any(len(name.encode()) > MAX_NAME or "\0" in name for name in block.names):
        raise DataError(f"an instance name is longer than {MAX_NAME} bytes or contains NUL")
    for name, value in block.extra.items():
        if not 1 <= value.ndim <= 4 or len(value) != b:
            raise DataError(f"extra array {name!r} has shape {value.shape}, expected one row for each of {b} instances")


def _check_values(block: Block) -> None:
    for name in ("xy", "demand", "capacity", "matrix"):
        value = getattr(block, name)
        if value is not None and not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            raise DataError(f"{name} of instance {row} is not finite", hint="remove NaN and infinite values")
    if block.cost is not None and np.isinf(block.cost).any():
        raise DataError("a reference cost is infinite", hint="NaN marks an unknown cost")
    if (block.demand is None) != (block.capacity is None):
        raise DataError("demand and capacity come together")
    if block.demand is not None and block.capacity is not None:
        check_demand(block.demand, block.capacity)
    if block.tour is not None:
        _check_tours(block.tour, block.nodes)


def check_demand(demand: Array, capacity: Array) -> None:
    """Refuse demands no vehicle can carry: (b, n) units against (b,) units."""
    rules = (
        ((capacity <= 0)[:, None], "the capacity is not positive"),
        (demand < 0, "a demand is negative"),
        (demand[:, :1] != 0, "the depot has a demand"),
        (demand > limit(demand, capacity)[:, None], "a demand exceeds the capacity"),
    )
    for bad, what in rules:
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise DataError(f"instance {row}: {what}", hint="every customer must fit into one vehicle")


def _check_tours(tour: Array, nodes: int) -> None:
    if tour.size and (tour.max() >= nodes or tour.min() < -1):
        raise DataError(f"a reference tour visits a node outside 0..{nodes - 1}")
    padded = tour < 0
    if (padded[:, :-1] & ~padded[:, 1:]).any():
        raise DataError("a reference tour has a gap: -1 may only follow its end")
