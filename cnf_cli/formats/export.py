"""Instances written as TSPLIB, VRPLIB or CSV text, so that every other solver can read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats import csv
from cnf_cli.formats.item import Item
from cnf_cli.formats.tours import number_text
from cnf_cli.formats.tsplib import PROBLEMS, RULES
from cnf_cli.regular_files import write_atomic

SUFFIX = {"tsp": ".tsp", "atsp": ".atsp", "cvrp": ".vrp"}


def write(path: Path, item: Item) -> None:
    """Afterwards `path` reads back as the same instance; unrounded distances, which TSPLIB has not, go to .csv only."""
    path = Path(path)
    if path.suffix.lower() == ".csv":
        csv.write(path, item)
        return
    expected = SUFFIX.get(item.problem, "")
    if path.suffix.lower() != expected:
        raise DataError(f"this {item.problem} is not written as {path.name}", hint=f"name it {_names(item)}")
    write_atomic(path, render(item).encode())


def _names(item: Item) -> str:
    """The names under which an instance can be exported without loss."""
    text = SUFFIX.get(item.problem) if item.rule in RULES.values() and item.problem in SUFFIX else None
    return " or ".join(f"*{suffix}" for suffix in (text, ".csv" if item.xy is not None else None, ".h5") if suffix)


def render(item: Item) -> str:
    """The instance as TSPLIB or VRPLIB text."""
    types = {rule: name for name, rule in RULES.items()}
    kinds = {problem: name for name, problem in PROBLEMS.items()}
    if item.rule not in types or item.problem not in kinds:
        raise DataError(
            f"{item.problem} with distance rule {item.rule} cannot be written as TSPLIB",
            hint=f"name it {_names(item)}: TSPLIB rounds distances to whole numbers",
        )
    n = item.nodes
    order = np.argsort(item.numbers, kind="stable")
    numbers = item.numbers[order]
    rows = [f"NAME : {item.name}", f"TYPE : {kinds[item.problem]}", f"DIMENSION : {n}"]
    rows.append(f"EDGE_WEIGHT_TYPE : {types[item.rule]}")
    if item.matrix is not None:
        rows.append("EDGE_WEIGHT_FORMAT : FULL_MATRIX")
    if item.capacity is not None:
        rows.append(f"CAPACITY : {number_text(item.capacity)}")
    if item.xy is not None:
        rows.append("NODE_COORD_SECTION" if item.matrix is None else "DISPLAY_DATA_SECTION")
        rows += [f"{i} {number_text(x)} {number_text(y)}" for i, (x, y) in zip(numbers, item.xy[order], strict=True)]
    if item.matrix is not None:
        rows.append("EDGE_WEIGHT_SECTION")
        rows += [" ".join(number_text(v) for v in row) for row in item.matrix[np.ix_(order, order)]]
    if item.demand is not None:
        rows.append("DEMAND_SECTION")
        rows += [f"{i} {number_text(q)}" for i, q in zip(numbers, item.demand[order], strict=True)]
        rows += ["DEPOT_SECTION", str(int(item.numbers[0])), "-1"]
    return "\n".join([*rows, "EOF", ""])
