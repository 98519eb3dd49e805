"""CSV of coordinates: one node per line as x,y or x,y,demand; with demands the first node is the depot."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats.files import read_text, replacing, stem
from cnf_cli.formats.item import Item
from cnf_cli.formats.tours import number_text
from cnf_cli.formats.tsplib import MAX_NODES

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CAPACITY = re.compile(r"#\s*capacity\s*[:=]\s*(\S+)\s*", re.IGNORECASE)
_COLUMNS = ("x", "y", "demand")


def read(path: Path, capacity: float | None = None, problem: str | None = None) -> Item:
    """The instance in a CSV file, named after the file."""
    return parse(read_text(path), capacity, problem, at=str(path), name=stem(path))


def parse(
    text: str, capacity: float | None = None, problem: str | None = None, at: str = "text", name: str = ""
) -> Item:
    """A TSP for two columns, a CVRP for three; `capacity` wins over a line `# capacity: 50`."""
    columns: list[int] | None = None
    rows: list[list[float]] = []
    lines: list[int] = []
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = row.strip()
        if not stripped:
            continue
        if stripped.startswith("#"):
            if capacity is None and (found := _CAPACITY.fullmatch(stripped)):
                capacity = _number(found[1], f"{at}:{line}")
            continue
        fields = [f.strip().strip('"') for f in re.split(r"[,;\t]", stripped)]
        if columns is None:
            columns = _header(fields, f"{at}:{line}")
            if not _NUMBER.fullmatch(fields[0]):
                continue
        rows.append(_row(fields, columns, f"{at}:{line}"))
        lines.append(line)
        if len(rows) > MAX_NODES:
            raise DataError(f"more than {MAX_NODES} nodes", at=f"{at}:{line}")
    if len(rows) < 2:
        raise DataError(f"{len(rows)} nodes: an instance needs at least 2", at=f"{at}:1", hint="one line per node: x,y")
    return _item(np.array(rows), lines, capacity, problem, at, name)


def _header(fields: list[str], at: str) -> list[int]:
    """Where x, y and demand are, from the first line: by name if it names them, else by position."""
    by_position = _NUMBER.fullmatch(fields[0])
    names = list(_COLUMNS[: len(fields)]) if by_position else [field.lower() for field in fields]
    if len(fields) not in (2, 3) or sorted(names) != sorted(_COLUMNS[: len(fields)]):
        raise DataError(
            f"columns {', '.join(fields)[:60]!r} are not x,y or x,y,demand", at=at, hint="write `x,y,demand` as header"
        )
    return [names.index(column) for column in _COLUMNS[: len(fields)]]


def _row(fields: list[str], columns: list[int], at: str) -> list[float]:
    if len(fields) != len(columns):
        raise DataError(f"{len(fields)} values where {len(columns)} are expected", at=at)
    return [_number(fields[c], at) for c in columns]


def _number(text: str, at: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else float("nan")
    if not abs(value) < 1e100:
        raise DataError(f"{text[:40]!r} is not a number", at=at)
    return value


def _item(table: np.ndarray, lines: list[int], capacity: float | None, problem: str | None, at: str, name: str) -> Item:
    kind = "cvrp" if table.shape[1] == 3 else "tsp"
    if problem not in (None, kind):
        raise DataError(
            f"this file holds a {kind}: it has {table.shape[1]} columns",
            at=f"{at}:{lines[0]}",
            hint="a cvrp has x,y,demand",
        )
    if kind == "tsp":
        return Item("tsp", "euclid", name, xy=table, at=at)
    if capacity is None or not 0 < capacity < 1e100:
        raise DataError(
            "the vehicle's capacity is not given" if capacity is None else f"capacity {capacity:g} is not positive",
            at=f"{at}:1",
            hint="add `--capacity 50`, or a line `# capacity: 50` to the file",
        )
    demand = table[:, 2]
    if demand[0] != 0:
        raise DataError(
            f"the first node is the depot, its demand is {demand[0]:g}", at=f"{at}:{lines[0]}", hint="set it to 0"
        )
    for bad, what in ((demand < 0, "is negative"), (demand > capacity, f"exceeds the capacity {capacity:g}")):
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            raise DataError(f"demand {demand[k]:g} {what}", at=f"{at}:{lines[k]}")
    return Item("cvrp", "euclid", name, xy=table[:, :2], demand=demand, capacity=float(capacity), at=at)


def write(path: Path, item: Item) -> None:
    """Afterwards `path` holds the coordinates, and for a CVRP demands and capacity, exactly."""
    if item.xy is None:
        raise DataError(f"{item.name} has no coordinates to write as CSV", hint="export it as .h5 or .atsp")
    columns = [item.xy[:, 0], item.xy[:, 1]] + ([] if item.demand is None else [item.demand])
    head = [] if item.capacity is None else [f"# capacity: {number_text(item.capacity)}"]
    head.append(",".join(_COLUMNS[: len(columns)]))
    body = [",".join(number_text(float(v)) for v in row) for row in zip(*columns, strict=True)]
    with replacing(Path(path)) as temp:
        temp.write_text("\n".join([*head, *body, ""]), encoding="utf-8", newline="\n")
