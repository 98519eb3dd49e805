"""Small instances solved to proved optimality by dynamic programming over subsets, without any third-party code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cnf_cli.problems.distance import Array
from cnf_cli.problems.load import limit
from cnf_cli.solvers.base import Found, Instance, walk

MOST_NODES = 12
MOST_CUSTOMERS = 9


def solvable(instance: Instance) -> bool:
    """Whether `solve_small` takes this instance."""
    return instance.nodes <= (MOST_CUSTOMERS + 1 if instance.problem == "cvrp" else MOST_NODES)


def solve_small(instance: Instance) -> Found:
    """An optimal tour, proved: Held and Karp's recursion; for CVRP also the best split of the customers into routes."""
    if instance.problem == "cvrp":
        return Found(_cvrp(instance), proved=True)
    return Found(held_karp(instance.distances()), proved=True)


def held_karp(distances: Array) -> tuple[int, ...]:
    """The shortest closed tour from node 0; distances need not be symmetric."""
    n = len(distances)
    if n <= 3 and np.array_equal(distances, distances.T):
        return tuple(range(n))
    if n == 1:
        return (0,)
    best, before = _paths(distances)
    full = (1 << (n - 1)) - 1
    return (0, *_trace(before, full, int((best[full] + distances[1:, 0]).argmin())))


def _paths(distances: Array) -> tuple[Array, NDArray[np.int8]]:
    """best[s, j]: the shortest path from 0 through the set s (bits: nodes 1..n-1) to j; and j's forerunner."""
    m = len(distances) - 1
    inner = distances[1:, 1:]
    best = np.full((1 << m, m), np.inf)
    before = np.full((1 << m, m), -1, np.int8)
    for j in range(m):
        best[1 << j, j] = distances[0, j + 1]
    for s in range(1, 1 << m):
        ends = [j for j in range(m) if s >> j & 1]
        if len(ends) < 2:
            continue
        rest = best[[s ^ (1 << j) for j in ends]] + inner[:, ends].T
        before[s, ends] = rest.argmin(1)
        best[s, ends] = rest.min(1)
    return best, before


def _trace(before: NDArray[np.int8], s: int, end: int) -> list[int]:
    out = [end + 1]
    while before[s, end] >= 0:
        s, end = s ^ (1 << end), int(before[s, end])
        out.append(end + 1)
    return out[::-1]


def _cvrp(instance: Instance) -> tuple[int, ...]:
    assert instance.demand is not None
    assert instance.capacity is not None
    m = instance.nodes - 1
    if m == 0:
        return (0,)
    distances = instance.distances()
    best, before = _paths(distances)
    closed = best + distances[1:, 0]
    load = np.array([sum(float(instance.demand[j + 1]) for j in range(m) if s >> j & 1) for s in range(1 << m)])
    route = np.where(load <= limit(instance.demand, instance.capacity), closed.min(1), np.inf)
    cost = [0.0] + [np.inf] * ((1 << m) - 1)
    last = [0] * (1 << m)
    for s in range(1, 1 << m):
        lowest = s & -s
        part = s
        while part:
            # Only parts with the lowest customer: each split is then counted once.
            if part & lowest and route[part] + cost[s ^ part] < cost[s]:
                cost[s], last[s] = route[part] + cost[s ^ part], part
            part = (part - 1) & s
    routes, s = [], (1 << m) - 1
    while s:
        routes.append(_trace(before, last[s], int(closed[last[s]].argmin())))
        s ^= last[s]
    return walk(routes)
