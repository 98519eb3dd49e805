"""CSV of coordinates: one node per line as x,y or x,y,demand; with demands the first node is the depot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats import dialect
from cnf_cli.formats.files import read_text, stem
from cnf_cli.formats.item import LARGEST, Item
from cnf_cli.formats.tours import number_text
from cnf_cli.formats.tsplib import MAX_NODES
from cnf_cli.problems.load import limit
from cnf_cli.regular_files import write_atomic

_COLUMNS = ("x", "y", "demand")
_DEGREES = {
    "x": ("lon", "lng", "long", "longitude", "länge", "laenge", "längengrad", "laengengrad"),
    "y": ("lat", "latitude", "breite", "breitengrad"),
}
_NAMES = {
    **{name: column for column, names in _DEGREES.items() for name in names},
    **dict.fromkeys(("bedarf", "menge", "quantity"), "demand"),
    **{name: name for name in _COLUMNS},
}
"""Header -> column: what a header may be called besides x, y and demand."""
_HEADERS = "write `x,y` or `x,y,demand` as header; lon,lat,demand is known too"


def read(path: Path, capacity: float | None = None, problem: str | None = None) -> Item:
    """The instance in a CSV file, named after the file."""
    return parse(read_text(path), capacity, problem, at=str(path), name=stem(path))


def parse(
    text: str, capacity: float | None = None, problem: str | None = None, at: str = "text", name: str = ""
) -> Item:
    """A TSP for two columns, a CVRP for three; `capacity` wins over a line `# capacity: 50`."""
    table = dialect.read(text, at, MAX_NODES, len(_COLUMNS))
    if capacity is None and "capacity" in table.said:
        value, line = table.said["capacity"]
        capacity = dialect.number(value, f"{at}:{line}")
    if len(table.rows) < 2 and not (table.rows and len(table.rows[0]) == 1):
        told = f"{len(table.rows)} nodes: an instance needs at least 2"
        raise DataError(told, at=f"{at}:1", hint="one line per node: x,y")
    columns = _columns(table, f"{at}:{table.first}")
    values = np.array([[row[c] for c in columns] for row in table.rows])
    return _item(values, table.lines, _notes(table.header), capacity, problem, at, name)


def looks_like(text: str) -> bool:
    """True where a text without a telling name begins like such a table: with a number, a comment or a known header."""
    first = text.lstrip().partition("\n")[0].strip().lower()
    names = {field for separator in dialect.SEPARATORS for field in dialect.split(first, separator)}
    return first[:1] in ("#", *"+-.0123456789") or first.startswith("sep=") or len(names & set(_NAMES)) > 1


def _columns(table: dialect.Table, at: str) -> list[int]:
    """Where x, y and demand are, by the header if there is one, else by position."""
    width = len(table.header or table.rows[0])
    wanted = _COLUMNS[:width]
    shown = ", ".join(table.header or [f"{value:g}" for value in table.rows[0]])[:60]
    names = [_NAMES.get(name.lower(), "") for name in table.header] if table.header else list(wanted)
    if width not in (2, 3) or sorted(names) != sorted(wanted):
        raise DataError(f"columns {shown!r} are not x,y or x,y,demand", at=at, hint=_HEADERS)
    return [names.index(column) for column in wanted]


def _notes(header: Sequence[str] | None) -> tuple[str, ...]:
    """What a user should know of columns in degrees."""
    degrees = [name for name in header or () if any(name.lower() in names for names in _DEGREES.values())]
    if not degrees:
        return ()
    told = "are costed as if the map were a plane: one degree east counts as much as one degree north"
    return (f"degrees ({', '.join(degrees)}) {told}; give metres (for example UTM) for lengths of real roads",)


def _item(
    table: np.ndarray,
    lines: list[int],
    notes: tuple[str, ...],
    capacity: float | None,
    problem: str | None,
    at: str,
    name: str,
) -> Item:
    kind = "cvrp" if table.shape[1] == 3 else "tsp"
    if problem not in (None, kind):
        raise DataError(
            f"this file holds a {kind}: it has {table.shape[1]} columns",
            at=f"{at}:{lines[0]}",
            hint="a cvrp has x,y,demand",
        )
    if kind == "tsp":
        return Item("tsp", "euclid", name, xy=table, notes=notes, at=at)
    if capacity is None or not 0 < capacity < LARGEST:
        raise DataError(
            "the vehicle's capacity is not given" if capacity is None else f"capacity {capacity:g} is not positive",
            at=f"{at}:1",
            hint="add a line `# capacity: 50` to the file, or give `cnf solve` and `cnf import` --capacity 50",
        )
    demand = table[:, 2]
    if demand[0] != 0:
        raise DataError(
            f"the first node is the depot, its demand is {demand[0]:g}", at=f"{at}:{lines[0]}", hint="set it to 0"
        )
    for bad, what in (
        (demand < 0, "is negative"),
        (demand > limit(demand, capacity), f"exceeds the capacity {capacity:g}"),
    ):
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            raise DataError(f"demand {demand[k]:g} {what}", at=f"{at}:{lines[k]}")
    xy, most = table[:, :2], float(capacity)
    return Item("cvrp", "euclid", name, xy=xy, demand=demand, capacity=most, notes=notes, at=at)


def write(path: Path, item: Item) -> None:
    """Afterwards `path` holds the coordinates, and for a CVRP demands and capacity, exactly."""
    if item.xy is None:
        raise DataError(f"{item.name} has no coordinates to write as CSV", hint="export it as .h5 or .atsp")
    columns = [item.xy[:, 0], item.xy[:, 1]] + ([] if item.demand is None else [item.demand])
    head = [] if item.capacity is None else [f"# capacity: {number_text(item.capacity)}"]
    head.append(",".join(_COLUMNS[: len(columns)]))
    body = [",".join(number_text(float(v)) for v in row) for row in zip(*columns, strict=True)]
    write_atomic(Path(path), "\n".join([*head, *body, ""]).encode())
