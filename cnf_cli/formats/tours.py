"""Tours as files: TSPLIB .tour and VRPLIB .sol, read against their instance and written for others to check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Array
from cnf_cli.formats.files import read_text
from cnf_cli.formats.item import Item
from cnf_cli.formats.lines import cut
from cnf_cli.formats.tsplib import MAX_NODES
from cnf_cli.regular_files import write_atomic

_ROUTE = re.compile(r"route\s*#?\s*\d+\s*:?\s*([0-9\s]*)", re.IGNORECASE)
_COST = re.compile(r"cost\s*:?\s*([0-9.eE+\-]+)", re.IGNORECASE)


def read_reference(path: Path, item: Item) -> Item:
    """The instance with the tour of a .tour or .sol file as its reference, checked and re-costed."""
    if path.suffix.lower() == ".sol":
        tour, claimed = parse_sol(read_text(path), item, at=str(path))
        return item.with_reference(tour, claimed, proved=False, at=str(path))
    optimal = path.name.lower().endswith(".opt.tour")
    return item.with_reference(parse_tour(read_text(path), item, at=str(path)), None, proved=optimal, at=str(path))


def parse_tour(text: str, item: Item, at: str = "text") -> list[int]:
    """Our node indices in the order of a .tour text; its first tour counts."""
    parts = cut(text, at)
    section = parts.sections.get("TOUR_SECTION")
    if section is None:
        raise parts.error("TOUR_SECTION is missing", hint="a tour file lists node numbers under TOUR_SECTION")
    if "DIMENSION" in parts.headers and parts.dimension(MAX_NODES) != item.nodes:
        raise parts.error(
            f"this tour has DIMENSION {parts.dimension(MAX_NODES)}, {item.name} has {item.nodes}", "DIMENSION"
        )
    numbers = section.numbers()
    end = np.flatnonzero(numbers == -1)
    numbers = numbers[: end[0]] if len(end) else numbers
    index = {int(number): i for i, number in enumerate(item.numbers)}
    unknown = next((k for k, v in enumerate(numbers) if v not in index), None)
    if unknown is not None:
        raise section.error(f"TOUR_SECTION: {item.name} has no node {numbers[unknown]:g}", section.line_of(unknown))
    return [index[int(v)] for v in numbers]


def parse_sol(text: str, item: Item, at: str = "text") -> tuple[list[int], float | None]:
    """A walk from the depot (node 0, also between routes) and the cost the file claims, if any.

    Such files number nodes one less than the instance file does.
    """
    index = {int(number) - 1: i for i, number in enumerate(item.numbers)}
    walk: list[int] = []
    cost: float | None = None
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = row.strip()
        if route := _ROUTE.fullmatch(stripped):
            walk += _route(route[1], index, item.name, f"{at}:{line}")
        elif stripped.lower().startswith("route"):
            raise DataError(f"{stripped[:40]!r} is not a list of nodes", at=f"{at}:{line}")
        elif found := _COST.fullmatch(stripped):
            cost = _number(found[1], f"{at}:{line}")
    if not walk:
        raise DataError("no line `Route #1: ...` found", at=f"{at}:1", hint="VRPLIB solutions list one route per line")
    return walk, cost


def _route(text: str, index: dict[int, int], name: str, at: str) -> list[int]:
    if len(text) > 20 * MAX_NODES:
        raise DataError("this route is too long", at=at)
    words = text.split()
    if any(len(word) > 12 or int(word) not in index for word in words):
        bad = next(word for word in words if len(word) > 12 or int(word) not in index)
        raise DataError(
            f"{name or 'the instance'} has no node {bad[:20]}", at=at, hint="is this the solution of this file?"
        )
    nodes = [index[int(word)] for word in words]
    while nodes and nodes[0] == 0:
        nodes.pop(0)
    while nodes and nodes[-1] == 0:
        nodes.pop()
    return [0, *nodes] if nodes else []


def _number(text: str, at: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"the cost {text[:40]!r} is not a number", at=at)
    return value


def write_tour(
    path: Path, name: str, tour: Sequence[int], numbers: Array | None = None, cost: float | None = None
) -> None:
    """Afterwards `path` is a TSPLIB tour of our node indices, in the instance file's own numbers (default 1..n)."""
    rows = [f"NAME : {name}.tour", "TYPE : TOUR", f"DIMENSION : {len(tour)}"]
    if cost is not None:
        rows.insert(1, f"COMMENT : length {number_text(cost)}")
    rows += ["TOUR_SECTION", *(str(v) for v in _numbered(tour, numbers, 1)), "-1", "EOF", ""]
    write_atomic(Path(path), "\n".join(rows).encode())


def write_sol(path: Path, tour: Sequence[int], cost: float, numbers: Array | None = None) -> None:
    """Afterwards `path` is a VRPLIB solution: one line per route of a walk that passes the depot between routes."""
    routes = [route for route in split_routes(tour) if route]
    rows = [f"Route #{k}: {' '.join(map(str, _numbered(r, numbers, 0)))}" for k, r in enumerate(routes, start=1)]
    write_atomic(Path(path), "\n".join([*rows, f"Cost {number_text(cost)}", ""]).encode())


def split_routes(walk: Sequence[int]) -> list[list[int]]:
    """The customers between two visits of the depot (node 0), route by route, empty routes left out."""
    routes: list[list[int]] = [[]]
    for node in walk:
        if int(node) == 0:
            routes.append([])
        else:
            routes[-1].append(int(node))
    return [route for route in routes if route]


def number_text(value: float) -> str:
    """The shortest text that reads back as the same number; whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _numbered(nodes: Sequence[int], numbers: Array | None, first: int) -> list[int]:
    if numbers is None:
        return [int(v) + first for v in nodes]
    return [int(numbers[int(v)]) - 1 + first for v in nodes]
