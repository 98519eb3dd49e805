"""The independent judge: is this tour feasible, and what does it really cost? Shares no code with the rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cnf_cli.problems.distance import Array, legs
from cnf_cli.problems.load import judged_limit


class InvalidTour(ValueError):
    """The tour does not solve the instance; the message says why."""


def tour_cost(
    tour: Sequence[int], *, xy: Array | None = None, matrix: Array | None = None, rule: str = "euclid"
) -> float:
    """Cost in float64 of the closed walk through `tour`."""
    at = np.asarray(tour, dtype=np.int64)
    to = np.roll(at, -1)
    if matrix is not None:
        return float(np.asarray(matrix, np.float64)[at, to].sum())
    assert xy is not None
    points = np.asarray(xy, np.float64)
    return float(legs(rule, points[at], points[to]).sum())


def check_tour(
    tour: Sequence[int],
    *,
    xy: Array | None = None,
    matrix: Array | None = None,
    demand: Array | None = None,
    capacity: float | None = None,
    rule: str = "euclid",
) -> float:
    """The cost of a feasible tour; raises `InvalidTour` for any other.

    Without demand the tour is a permutation of all nodes. With demand it is a walk that starts at the depot (node 0),
    may pass it any number of times, visits each customer once, and never carries more than `capacity` between depots.
    """
    nodes = len(xy) if xy is not None else len(matrix)  # type: ignore[arg-type]
    seen = [0] * nodes
    for node in tour:
        if not 0 <= int(node) < nodes:
            raise InvalidTour(f"node {int(node)} does not exist: the instance has nodes 0..{nodes - 1}")
        seen[int(node)] += 1
    if demand is not None:
        if len(tour) == 0 or int(tour[0]) != 0:
            raise InvalidTour("the walk does not start at the depot")
        _check_loads(tour, demand, capacity)
    wrong = [i for i in range(0 if demand is None else 1, nodes) if seen[i] != 1]
    if wrong:
        more = f", {len(wrong)} such nodes in all" if wrong[1:] else ""
        raise InvalidTour(f"node {wrong[0]} is visited {seen[wrong[0]]} times{more}")
    cost = tour_cost(tour, xy=xy, matrix=matrix, rule=rule)
    if not np.isfinite(cost):
        raise InvalidTour("the cost is not finite")
    return cost


def _check_loads(tour: Sequence[int], demand: Array, capacity: float | None) -> None:
    full = 1.0 if capacity is None else float(capacity)
    most = judged_limit(demand, full)
    carried, route = 0.0, 1
    for node in tour:
        if int(node) == 0:
            carried, route = 0.0, route + 1
            continue
        carried += float(demand[int(node)])
        if carried > most:
            raise InvalidTour(f"route {route - 1} carries {carried:.10g}, more than the capacity {full:.10g}")
