"""One instance as a file gave it, and how many of them become a data set."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Array, Attr, Block, Dataset
from cnf_cli.problems.proof import beaten, contradiction, rounding
from cnf_cli.problems.validate import InvalidTour, check_tour

COST_TOLERANCE = 1e-3
LARGEST = 1e100
"""Coordinates, costs and demands of any file stay below this: their squares must be finite."""


@dataclass(frozen=True, eq=False)
class Item:
    """An instance with at most one reference tour; arrays have no batch axis."""

    problem: str
    rule: str = "euclid"
    name: str = ""
    xy: Array | None = None
    demand: Array | None = None
    capacity: float | None = None
    matrix: Array | None = None
    ids: Array | None = None
    """The file's own node numbers, where they are not 1..n in our order."""
    cost: float = float("nan")
    tour: tuple[int, ...] = ()
    proved: bool = False
    notes: tuple[str, ...] = ()
    at: str = field(default="", compare=False)

    @property
    def nodes(self) -> int:
        first = self.xy if self.xy is not None else self.matrix
        assert first is not None
        return len(first)

    @property
    def numbers(self) -> Array:
        """The file's own number of each of our nodes."""
        return np.arange(1, self.nodes + 1) if self.ids is None else self.ids

    def re_cost(self, tour: Sequence[int]) -> float:
        """What a tour really costs, in float64 by this instance's rule; an infeasible tour is a `DataError`."""
        try:
            return check_tour(
                tour, xy=self.xy, matrix=self.matrix, demand=self.demand, capacity=self.capacity, rule=self.rule
            )
        except InvalidTour as error:
            raise DataError(
                f"the reference tour of {self.name or 'an instance'} is wrong: {error}", at=self.at
            ) from None

    def with_reference(self, tour: Sequence[int], claimed: float | None, proved: bool, at: str = "") -> Item:
        """This instance with its reference; the cost kept is recomputed, and a claimed cost must agree with it."""
        try:
            cost = self.re_cost(tour)
        except DataError as error:
            raise DataError(
                error.message, at=at or error.at, hint="are these the solutions of these instances?"
            ) from None
        if claimed is not None and not abs(cost - claimed) <= COST_TOLERANCE * max(abs(cost), 1e-12):
            raise DataError(
                f"the tour of {self.name or 'an instance'} costs {cost:.9g}, its file says {claimed:.9g}",
                at=at or self.at,
                hint="are these the solutions of these instances?",
            )
        if tuple(tour) != self.tour:
            self.no_proof_is_beaten(cost, proved, at or "the tour given")
        return replace(self, cost=cost, tour=tuple(int(v) for v in tour), proved=proved)

    def no_proof_is_beaten(self, cost: float, proved: bool, who: str) -> None:
        """An error that names both, unless this cost and the reference that is known leave each other's proof alone."""
        if math.isnan(self.cost) or not (proved or self.proved):
            return
        slack = rounding(self.nodes, xy=self.xy, matrix=self.matrix, rule=self.rule)
        name, mine = self.name or "an instance", self.at or "its own reference"
        if self.proved and beaten(cost, self.cost, slack):
            raise contradiction(name, who, cost, mine, self.cost)
        if proved and self.tour and beaten(self.cost, cost, slack):  # a cost without a tour is hearsay
            raise contradiction(name, mine, self.cost, who, cost)


def collect(items: Sequence[Item], *, solver: str = "", attrs: dict[str, Attr] | None = None) -> Dataset:
    """One block per size and rule, smallest first; within a block the order of `items`."""
    problems = sorted({item.problem for item in items})
    if len(problems) != 1:
        at = next((item.at for item in items if item.problem != items[0].problem), None)
        raise DataError(
            f"these files hold {' and '.join(problems) or 'no instances'}: a data set has one problem",
            at=at,
            hint="import each problem's files apart",
        )
    groups: defaultdict[tuple[int, str, bool, bool], list[Item]] = defaultdict(list)
    for item in items:
        groups[_group(item)].append(item)
    blocks = tuple(_block(groups[key]) for key in sorted(groups))
    return Dataset(problem=problems[0], blocks=blocks, solver=solver, attrs=attrs or {})


def places(items: Sequence[Item]) -> list[int]:
    """Which of `items` stands at each place of what `collect` makes of them."""
    return sorted(range(len(items)), key=lambda k: _group(items[k]))


def _group(item: Item) -> tuple[int, str, bool, bool]:
    return item.nodes, item.rule, item.xy is not None, item.matrix is not None


def _block(items: list[Item]) -> Block:
    first = items[0]
    extra: dict[str, Array] = {}
    if any(item.ids is not None for item in items):
        extra["ids"] = np.stack([item.numbers for item in items]).astype("i8")
    known = any(item.tour for item in items) or any(not np.isnan(item.cost) for item in items)
    with_depot = first.demand is not None
    return Block(
        xy=None if first.xy is None else np.stack([item.xy for item in items]),  # type: ignore[misc]
        matrix=None if first.matrix is None else np.stack([item.matrix for item in items]),  # type: ignore[misc]
        demand=np.stack([item.demand for item in items]) if with_depot else None,  # type: ignore[misc]
        capacity=np.array([item.capacity for item in items], dtype="f8") if with_depot else None,
        names=tuple(item.name for item in items),
        cost=np.array([item.cost for item in items]) if known else None,
        tour=pad_tours([item.tour for item in items]) if any(item.tour for item in items) else None,
        proved=np.array([item.proved for item in items]) if known else None,
        extra=extra,
        rule=first.rule,
    )


def pad_tours(tours: Sequence[Sequence[int]]) -> Array:
    """Tours as rows of one int32 array, padded with -1."""
    out = np.full((len(tours), max(map(len, tours))), -1, dtype="i4")
    for row, tour in zip(out, tours, strict=True):
        row[: len(tour)] = tour
    return out


def items_of(dataset: Dataset) -> list[Item]:
    """The instances of a data set one by one, e.g. to write each to a file of its own."""
    out = []
    for block, i in dataset.instances():
        demand, capacity, ids = block.demand, block.capacity, block.extra.get("ids")
        out.append(
            Item(
                problem=dataset.problem,
                rule=block.rule,
                name=block.names[i],
                xy=None if block.xy is None else block.xy[i],
                demand=None if demand is None else demand[i],
                capacity=None if capacity is None else float(capacity[i]),
                matrix=None if block.matrix is None else block.matrix[i],
                ids=None if ids is None else ids[i],
                cost=float("nan") if block.cost is None else float(block.cost[i]),
                tour=tuple(block.tour_of(i) or ()),
                proved=block.proved is not None and bool(block.proved[i]),
            )
        )
    return out
