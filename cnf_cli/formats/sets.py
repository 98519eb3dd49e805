"""The field's pickled data sets and solutions as instances: what each list means, checked before it is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats import legacy, pickles
from cnf_cli.formats.dataset import Array
from cnf_cli.formats.files import read_bytes
from cnf_cli.formats.item import LARGEST, Item
from cnf_cli.problems.load import limit

MAX_PICKLE = 512 << 20
SOLVERS = ("concorde", "lkh", "hgs")
_NUMBER = (float, int)


@dataclass(frozen=True)
class Solutions:
    """Reference tours in the order of their instances, as the file lists them."""

    costs: tuple[float, ...]
    tours: tuple[tuple[int, ...], ...]
    solver: str = ""
    at: str = ""

    def attach(self, items: Sequence[Item]) -> list[Item]:
        """Every instance with its tour, checked and re-costed."""
        if len(items) != len(self.costs):
            raise DataError(
                f"{len(self.costs)} solutions for {len(items)} instances", at=self.at, hint="give the matching file"
            )
        proved = self.solver == "concorde"
        out = []
        for k, (item, cost, tour) in enumerate(zip(items, self.costs, self.tours, strict=True)):
            walk = (0, *tour) if item.demand is not None else tour[:-1] if len(tour) == item.nodes + 1 else tour
            out.append(item.with_reference(walk, cost, proved, at=f"{self.at}: solution {k}"))
        return out


def read_pickle(path: Path) -> list[Item] | Solutions:
    """The instances, or the solutions, in one of the field's .pkl files."""
    data = read_bytes(path, MAX_PICKLE)
    content = pickles.loads(data, legacy.storage, at=str(path))
    return interpret(content, budget=len(data), at=str(path))


def interpret(content: Any, budget: int, at: str) -> list[Item] | Solutions:
    """What an unpickled list means; `budget` (the file's size) bounds how often parts of it may be shared."""
    if isinstance(content, np.ndarray):
        if content.ndim != 3 or content.shape[2] != 2:
            raise DataError(f"an array of shape {content.shape} is no TSP set, expected (b, n, 2)", at=at)
        return [Item("tsp", xy=np.asarray(xy, "f8"), at=at) for xy in content]
    if not isinstance(content, list) or not content:
        raise DataError(
            "this pickle holds no list of instances", at=at, hint="SPEC: list of instances, or of (cost, tour)"
        )
    reader = _Reader(budget, at)
    first = content[0]
    if isinstance(first, list | tuple) and len(first) == 4 and isinstance(first[3], _NUMBER):
        return [reader.cvrp(k, row) for k, row in enumerate(content)]
    if isinstance(first, list | tuple) and len(first) == 2 and isinstance(first[0], _NUMBER):
        pairs = [reader.solution(k, row) for k, row in enumerate(content)]
        name = Path(at).name.lower()
        solver = next((s for s in SOLVERS if s in name), "")
        return Solutions(tuple(c for c, _ in pairs), tuple(t for _, t in pairs), solver, at)
    return [Item("tsp", xy=reader.points(k, row), at=f"{at}: instance {k}") for k, row in enumerate(content)]


class _Reader:
    def __init__(self, budget: int, at: str) -> None:
        self.budget, self.at = budget, at

    def error(self, k: int, what: str) -> DataError:
        return DataError(f"entry {k} {what}", at=f"{self.at}: entry {k}", hint="is this a TSP or CVRP data set?")

    def spend(self, k: int, count: int) -> None:
        # Every number of an honest file takes at least one byte; a file of shared lists could claim far more.
        self.budget -= count
        if self.budget < 0:
            raise self.error(k, "repeats itself: the list is larger than its file")

    def points(self, k: int, rows: Any) -> Array:
        if not isinstance(rows, list | tuple) or len(rows) < 2:
            raise self.error(k, "is not a list of at least 2 nodes")
        self.spend(k, 2 * len(rows))
        if not all(isinstance(p, list | tuple) and len(p) == 2 for p in rows):
            raise self.error(k, "has a node that is not [x, y]")
        return np.array([self.numbers(k, p, 2) for p in rows], dtype="f8")

    def numbers(self, k: int, values: Any, count: int) -> Sequence[float]:
        if not isinstance(values, list | tuple) or len(values) != count:
            raise self.error(k, f"has {len(values) if isinstance(values, list | tuple) else 0} values, not {count}")
        if not all(type(v) in _NUMBER and abs(v) < LARGEST for v in values):
            raise self.error(k, "has a value that is not a finite number")
        return values

    def cvrp(self, k: int, row: Any) -> Item:
        """(depot, customers, demands, capacity); the depot as [x, y] or [[x, y]]."""
        if not isinstance(row, list | tuple) or len(row) != 4:
            raise self.error(k, "is not (depot, customers, demands, capacity)")
        depot, customers, demands, capacity = row
        if isinstance(depot, list | tuple) and len(depot) == 1:
            depot = depot[0]
        xy = np.concatenate([np.array([self.numbers(k, depot, 2)], dtype="f8"), self.points(k, customers)])
        self.spend(k, len(customers))
        demand = np.array([0.0, *self.numbers(k, demands, len(customers))])
        (full,) = self.numbers(k, (capacity,), 1)
        if full <= 0 or demand.min() < 0 or demand.max() > limit(demand, float(full)):
            raise self.error(k, f"has demands outside 0..{full:g}, its capacity")
        return Item("cvrp", xy=xy, demand=demand, capacity=float(full), at=f"{self.at}: instance {k}")

    def solution(self, k: int, row: Any) -> tuple[float, tuple[int, ...]]:
        if not isinstance(row, list | tuple) or len(row) != 2 or not isinstance(row[1], list | tuple):
            raise self.error(k, "is not (cost, tour)")
        (cost,) = self.numbers(k, (row[0],), 1)
        self.spend(k, len(row[1]))
        if not all(type(v) is int and 0 <= v < 2**31 for v in row[1]):
            raise self.error(k, "has a tour that is not a list of node numbers")
        return float(cost), tuple(row[1])
