"""TSPLIB and VRPLIB instances (.tsp, .atsp, .vrp), read by token, every error with its file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cnf_cli.formats.dataset import Array
from cnf_cli.formats.files import read_text, stem
from cnf_cli.formats.item import LARGEST, Item
from cnf_cli.formats.lines import Parts, Section, cut
from cnf_cli.problems.load import limit

MAX_NODES = 1_000_000
MAX_MATRIX = 10_000
RULES = {"EUC_2D": "euc_2d", "CEIL_2D": "ceil_2d", "ATT": "att", "GEO": "geo", "EXPLICIT": "explicit"}
PROBLEMS = {"TSP": "tsp", "ATSP": "atsp", "CVRP": "cvrp"}
# A symmetric matrix listed by the columns of one triangle is the other triangle listed by rows.
_BY_ROWS = {
    "UPPER_COL": "LOWER_ROW",
    "LOWER_COL": "UPPER_ROW",
    "UPPER_DIAG_COL": "LOWER_DIAG_ROW",
    "LOWER_DIAG_COL": "UPPER_DIAG_ROW",
}
_TRIANGLES = {
    "UPPER_ROW": (True, 1),
    "UPPER_DIAG_ROW": (True, 0),
    "LOWER_ROW": (False, 1),
    "LOWER_DIAG_ROW": (False, 0),
}
FORMATS = ("FULL_MATRIX", *_TRIANGLES, *_BY_ROWS)


def read(path: Path) -> Item:
    """The instance in a .tsp, .atsp or .vrp file, named after the file."""
    return parse(read_text(path), at=str(path), name=stem(path))


def parse(text: str, at: str = "text", name: str = "") -> Item:
    """The instance a TSPLIB or VRPLIB text describes; the depot, if any, becomes node 0."""
    parts = cut(text, at)
    problem, rule = _problem(parts), _rule(parts)
    n = parts.dimension(MAX_MATRIX if rule == "explicit" else MAX_NODES)
    notes = [f"{key} ignored" for key in parts.ignored]
    ids, xy = _coordinates(parts, n, rule)
    matrix = _matrix(parts, n, symmetric=problem != "atsp") if rule == "explicit" else None
    if "FIXED_EDGES_SECTION" in parts.sections:
        fixed = parts.sections["FIXED_EDGES_SECTION"].numbers()
        notes.append(f"FIXED_EDGES_SECTION ignored ({len(fixed) // 2} edges need not be used)")
    if problem != "cvrp":
        item = Item(problem, rule, name, xy=xy, matrix=matrix, ids=_unusual(ids), at=at)
    else:
        item = _cvrp(parts, ids, xy, matrix, rule, name, notes)
    object.__setattr__(item, "notes", tuple(notes))
    return item


def _problem(parts: Parts) -> str:
    kind = parts.word("TYPE")
    if kind in PROBLEMS:
        return PROBLEMS[kind]
    if kind == "TOUR":
        raise parts.error("this is a tour, not an instance", "TYPE", "give it together with its instance")
    if kind:
        raise parts.error(f"TYPE {kind} is not supported", "TYPE", f"supported: {', '.join(PROBLEMS)}")
    raise parts.error("TYPE is missing", hint="add a line `TYPE : TSP`, `TYPE : ATSP` or `TYPE : CVRP`")


def _rule(parts: Parts) -> str:
    kind = parts.word("EDGE_WEIGHT_TYPE")
    if kind in RULES:
        return RULES[kind]
    if not kind:
        raise parts.error(
            "EDGE_WEIGHT_TYPE is missing", hint=f"add a line `EDGE_WEIGHT_TYPE : <one of {', '.join(RULES)}>`"
        )
    raise parts.error(f"EDGE_WEIGHT_TYPE {kind} is not supported", "EDGE_WEIGHT_TYPE", f"supported: {', '.join(RULES)}")


def _coordinates(parts: Parts, n: int, rule: str) -> tuple[Array, Array | None]:
    """Node numbers (n,) and coordinates (n, 2), both by rising node number."""
    section = parts.sections.get("NODE_COORD_SECTION")
    if section is None and rule == "explicit":
        section = parts.sections.get("DISPLAY_DATA_SECTION")
    if section is None:
        if rule != "explicit":
            raise parts.error(
                f"NODE_COORD_SECTION is missing: {rule.upper()} needs coordinates",
                "EDGE_WEIGHT_TYPE",
                "add the coordinates, or EDGE_WEIGHT_TYPE EXPLICIT with a matrix",
            )
        return np.arange(1, n + 1), None
    ids, rest = _by_number(section, 3, n)
    if np.abs(rest).max() > LARGEST:
        raise section.error(f"{section.name}: a coordinate is too large to square", hint="rescale the coordinates")
    return ids, rest


def _by_number(section: Section, columns: int, n: int) -> tuple[Array, Array]:
    """A table whose first column numbers the nodes 1..n (or 0..n-1), sorted by it."""
    table = section.table(columns, n)
    ids = table[:, 0]
    order = np.argsort(ids, kind="stable")
    first = ids[order[0]]
    wrong = np.flatnonzero(ids[order] != np.arange(n) + (0.0 if first == 0 else 1.0))
    if len(wrong):
        k = int(order[wrong[0]])
        raise section.error(
            f"{section.name}: node number {ids[k]:g} is out of place",
            section.line_of(k * columns),
            f"nodes are numbered 1 to {n}, each once",
        )
    return ids[order].astype("i8"), table[order, 1:]


def _unusual(ids: Array) -> Array | None:
    return None if np.array_equal(ids, np.arange(1, len(ids) + 1)) else ids


def _matrix(parts: Parts, n: int, symmetric: bool) -> Array:
    """EDGE_WEIGHT_SECTION as (n, n) with a zero diagonal, whatever the file puts there."""
    section = parts.sections.get("EDGE_WEIGHT_SECTION")
    if section is None:
        raise parts.error("EDGE_WEIGHT_SECTION is missing", "EDGE_WEIGHT_TYPE", "EXPLICIT needs the matrix itself")
    layout = parts.word("EDGE_WEIGHT_FORMAT") or "FULL_MATRIX"
    if layout not in FORMATS:
        raise parts.error(
            f"EDGE_WEIGHT_FORMAT {layout} is not supported", "EDGE_WEIGHT_FORMAT", f"supported: {', '.join(FORMATS)}"
        )
    layout = _BY_ROWS.get(layout, layout)
    if layout == "FULL_MATRIX":
        matrix = section.table(n, n)
    elif not symmetric:
        raise parts.error(
            f"EDGE_WEIGHT_FORMAT {layout} gives one direction only, an ATSP needs both", "EDGE_WEIGHT_FORMAT"
        )
    else:
        upper, skip = _TRIANGLES[layout]
        count = n * (n - 1) // 2 if skip else n * (n + 1) // 2
        if section.count() != count:
            raise section.error(
                f"{section.name} has {section.count()} numbers, {layout} with DIMENSION {n} needs {count}",
                hint="check DIMENSION and EDGE_WEIGHT_FORMAT",
            )
        values = section.numbers()
        matrix = np.zeros((n, n))
        rows, columns = np.triu_indices(n, skip) if upper else np.tril_indices(n, -skip)
        matrix[rows, columns] = values
        matrix[columns, rows] = values
    np.fill_diagonal(matrix, 0.0)
    _check_matrix(section, matrix, symmetric)
    return matrix


def _check_matrix(section: Section, matrix: Array, symmetric: bool) -> None:
    if matrix.min() < 0:
        i, j = np.argwhere(matrix < 0)[0]
        raise section.error(f"{section.name}: the weight from node {i + 1} to {j + 1} is negative")
    if matrix.max() > LARGEST:
        raise section.error(f"{section.name}: a weight is too large to add up", hint="rescale the weights")
    if symmetric and not np.array_equal(matrix, matrix.T):
        i, j = np.argwhere(matrix != matrix.T)[0]
        raise section.error(
            f"{section.name}: the weights between nodes {i + 1} and {j + 1} differ by direction",
            hint="write `TYPE : ATSP` if that is meant",
        )


def _cvrp(
    parts: Parts, ids: Array, xy: Array | None, matrix: Array | None, rule: str, name: str, notes: list[str]
) -> Item:
    n = len(ids)
    capacity = _capacity(parts)
    section = parts.sections.get("DEMAND_SECTION")
    if section is None:
        raise parts.error("DEMAND_SECTION is missing", "TYPE", "a CVRP needs one demand per node")
    numbers, rest = _by_number(section, 2, n)
    if xy is None:
        ids = numbers
    if not np.array_equal(numbers, ids):
        raise section.error("DEMAND_SECTION numbers its nodes unlike NODE_COORD_SECTION")
    demand = rest[:, 0]
    depot = _depot(parts, ids, notes)
    _check_demand(section, demand, depot, capacity, ids)
    order = np.r_[depot, np.delete(np.arange(n), depot)]
    return Item(
        "cvrp",
        rule,
        name,
        xy=None if xy is None else xy[order],
        demand=demand[order],
        capacity=capacity,
        matrix=None if matrix is None else matrix[np.ix_(order, order)],
        ids=_unusual(ids[order]),
        at=parts.at,
    )


def _capacity(parts: Parts) -> float:
    text = parts.headers.get("CAPACITY", ("", 0))[0]
    if not text:
        raise parts.error("CAPACITY is missing", hint="add a line `CAPACITY : <units per vehicle>`")
    try:
        value = float(text.replace("_", "?"))
    except ValueError:
        value = float("nan")
    if not 0 < value < LARGEST:
        raise parts.error(f"CAPACITY {text[:40]!r} is not a positive number", "CAPACITY")
    return value


def _depot(parts: Parts, ids: Array, notes: list[str]) -> int:
    section = parts.sections.get("DEPOT_SECTION")
    if section is None:
        notes.append("DEPOT_SECTION missing: the first node is the depot")
        return 0
    numbers = section.numbers().tolist()
    depots = numbers[: numbers.index(-1)] if -1 in numbers else numbers
    if len(depots) != 1:
        raise section.error(f"DEPOT_SECTION names {len(depots)} depots, exactly one is supported")
    found = np.flatnonzero(ids == depots[0])
    if not len(found):
        raise section.error(f"DEPOT_SECTION: there is no node {depots[0]:g}", section.line_of(0))
    return int(found[0])


def _check_demand(section: Section, demand: Array, depot: int, capacity: float, ids: Array) -> None:
    if demand[depot] != 0:
        raise section.error(
            f"DEMAND_SECTION: the depot, node {ids[depot]}, has demand {demand[depot]:g}", hint="set it to 0"
        )
    for bad, what in (
        (demand < 0, "is negative"),
        (demand > limit(demand, capacity), f"exceeds the CAPACITY {capacity:g}"),
    ):
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            line = next((at for at, text in section.rows if text.split()[0] == str(ids[k])), None)
            raise section.error(
                f"DEMAND_SECTION: demand {demand[k]:g} of node {ids[k]} {what}",
                line,
                "every customer must fit into one vehicle",
            )


def looks_like(text: str) -> bool:
    """Whether a text has the keywords of such a file."""
    head = text[:65536].upper()
    return any(word in head for word in ("DIMENSION", "NODE_COORD_SECTION", "EDGE_WEIGHT", "TOUR_SECTION"))
