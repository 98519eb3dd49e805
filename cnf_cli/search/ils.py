"""Iterated local search from any tour: 2-opt and Or-opt, segment insertion (ATSP), ruin and recreate (CVRP)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from cnf_cli.problems.load import limit
from cnf_cli.search import plain_fleet, plain_tour
from cnf_cli.solvers.base import Instance, walk

_search: Any
try:
    _search = import_module("cnf_cli.search._search")
except ImportError:  # built without a compiler: the same steps in Python, far fewer of them in a second
    _search = None

NEAR = 8
"""Neighbours of each node that moves join it to."""
REACH = 50
"""The longest path that changes places with its neighbour."""
HEAT = 0.4
"""How much longer a tour may become at first, in average edges; it falls to nothing over the budget."""
RUIN = {"removed": 10.0, "longest": 10.0, "hot": 0.7, "cold": 0.07}
SMALLEST = 1e-10
"""Gains below this share of the longest edge are rounding."""


def native() -> bool:
    """True when the compiled kernels are there."""
    return _search is not None


def improve(
    instance: Instance, tour: Sequence[int], *, rounds: int = 0, seconds: float = 0.0, seed: int = 0
) -> tuple[tuple[int, ...], int]:
    """(a feasible tour that costs no more than the given feasible one, the rounds made).

    A budget of rounds gives the same tour every time, one of seconds depends on the machine; of both the first to end.
    """
    if rounds <= 0 and seconds <= 0:
        raise ValueError("a search needs a budget of rounds or seconds")
    if instance.nodes < 4:
        return tuple(tour), 0
    distances = np.ascontiguousarray(instance.distances())
    run = _routes if instance.problem == "cvrp" else _tours
    found, made = run(instance, distances, [int(v) for v in tour if v >= 0], rounds, seconds, seed)
    # The search adds up gains; what counts is what the judge finds.
    return (found, made) if instance.cost(found) <= instance.cost(tour) else (tuple(tour), made)


def _tours(
    instance: Instance, distances: np.ndarray, tour: list[int], rounds: int, seconds: float, seed: int
) -> tuple[tuple[int, ...], int]:
    if _search is None:
        least = SMALLEST * float(distances.max())
        share = _clock(rounds, seconds)
        best, made = plain_tour.climb(distances, tour, seed, share, near=NEAR, reach=REACH, heat=HEAT, least=least)
        return tuple(best), made
    order, count = np.array([tour], np.int32), np.zeros(1, np.int64)
    _search.tours(distances[None], order, _seeds(seed), NEAR, REACH, HEAT, rounds, seconds, count, 1)
    return tuple(int(v) for v in order[0]), int(count[0])


def _routes(
    instance: Instance, distances: np.ndarray, tour: list[int], rounds: int, seconds: float, seed: int
) -> tuple[tuple[int, ...], int]:
    assert instance.demand is not None
    assert instance.capacity is not None
    demand = np.ascontiguousarray(instance.demand, np.float64)
    most = float(limit(demand, float(instance.capacity)))
    if _search is None:
        least, share = SMALLEST * float(distances.max()), _clock(rounds, seconds)
        routes, made = plain_fleet.anneal(distances, demand, most, routes_of(tour), seed, share, least=least, **RUIN)
        return walk(routes), made
    walks, count = np.zeros((1, 2 * len(demand)), np.int32), np.zeros(1, np.int64)
    start = walk(routes_of(tour))
    walks[0, : len(start)] = start
    ruin = (RUIN[name] for name in ("removed", "longest", "hot", "cold"))
    _search.routes(
        distances[None], demand[None], np.array([float(most)]), walks, _seeds(seed), *ruin, rounds, seconds, count, 1
    )
    return walk(routes_of(walks[0])), int(count[0])


def routes_of(tour: Sequence[int] | np.ndarray) -> list[list[int]]:
    """The routes of a walk with the depot, node 0, between them."""
    routes: list[list[int]] = [[]]
    for node in tour:
        if node:
            routes[-1].append(int(node))
        elif routes[-1]:
            routes.append([])
    return [stops for stops in routes if stops]


def _seeds(seed: int) -> np.ndarray:
    return np.array([seed], np.uint64)


def _clock(rounds: int, seconds: float) -> plain_tour.Share:
    began = time.monotonic()

    def share(made: int) -> float | None:
        used = (time.monotonic() - began) / seconds if seconds > 0 else 0.0
        if (rounds and made >= rounds) or used >= 1:
            return None
        return made / rounds if rounds else used

    return share
