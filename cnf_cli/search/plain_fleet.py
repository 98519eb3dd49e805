"""Ruin and recreate on routes from one depot, step by step: what cpp/fleet.h does, for reading and tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cnf_cli.search.draws import Draws
from cnf_cli.search.plain_tour import Share, neighbours


class Fleet:
    """Routes as lists of stops; `disturb` changes them, and a copy made before takes the change back."""

    def __init__(self, distances: np.ndarray, demand: np.ndarray, limit: float, routes: list[list[int]]) -> None:
        self.d, self.demand, self.limit, self.routes = distances.tolist(), demand.tolist(), limit, routes

    def length(self, stops: Sequence[int]) -> float:
        total, last = 0.0, 0
        for stop in stops:
            total += self.d[last][stop]
            last = stop
        return total + float(self.d[last][0])

    def load(self, stops: Sequence[int]) -> float:
        total = 0.0
        for stop in stops:
            total += self.demand[stop]
        return total

    def disturb(self, near: Sequence[Sequence[int]], removed: float, longest: float, draws: Draws) -> float:
        """Takes customers out and puts them back: the change of length."""
        absent: list[int] = []
        change = self._ruin(near, removed, longest, draws, absent)
        self._sort(absent, draws)
        loads = [self.load(stops) for stops in self.routes]
        for node in absent:
            change += self._insert(node, loads, draws)
        return change

    def tidy(self) -> None:
        """Empty routes go; the last route takes the place of each."""
        for k in range(len(self.routes) - 1, -1, -1):
            if not self.routes[k]:
                self.routes[k], self.routes[-1] = self.routes[-1], self.routes[k]
                self.routes.pop()

    def _ruin(
        self, near: Sequence[Sequence[int]], removed: float, longest: float, draws: Draws, absent: list[int]
    ) -> float:
        customers = len(self.demand) - 1
        longest = min(longest, customers / len(self.routes))
        strings = int(1 + draws.unit() * max(0.0, 4 * removed / (1 + longest) - 1))
        seed, ruined, change = 1 + draws.below(customers), set[int](), 0.0
        where = {stop: k for k, stops in enumerate(self.routes) for stop in stops}
        for node in (seed, *near[seed]):
            if len(ruined) >= strings and node != seed:
                break
            k = where.get(node)
            if k is None or k in ruined:
                continue
            ruined.add(k)
            was = self.length(self.routes[k])
            self._remove(k, node, longest, draws, absent)
            change += self.length(self.routes[k]) - was
        return change

    def _remove(self, k: int, node: int, longest: float, draws: Draws, absent: list[int]) -> None:
        """A string of the route's stops around `node` goes; half of the time one stop within it stays."""
        stops, size = self.routes[k], len(self.routes[k])
        wanted = min(size, int(1 + draws.unit() * min(float(size), longest)))
        spares = 1 < wanted < size and draws.unit() < 0.5
        span, at = wanted + spares, stops.index(node)
        low, high = max(0, at - span + 1), min(at, size - span)
        first = low + draws.below(high - low + 1)
        spared = first + 1 + draws.below(span - 2) if spares else -1
        goes = [first <= p < first + span and p != spared for p in range(size)]
        absent += [stop for stop, gone in zip(stops, goes, strict=True) if gone]
        self.routes[k] = [stop for stop, gone in zip(stops, goes, strict=True) if not gone]

    def _sort(self, absent: list[int], draws: Draws) -> None:
        """In random order, the largest first, the farthest first or the nearest first: 4, 4, 2 and 1 times of 11."""
        way = draws.below(11)
        if way < 4:
            for k in range(len(absent), 1, -1):
                other = draws.below(k)
                absent[k - 1], absent[other] = absent[other], absent[k - 1]
        else:
            by = self.demand if way < 8 else self.d[0]
            sign = 1 if way == 10 else -1
            absent.sort(key=lambda v: (sign * by[v], v))

    def _insert(self, node: int, loads: list[float], draws: Draws) -> float:
        """Where it costs least; one place in a hundred is overlooked."""
        least, best, at = math.inf, len(self.routes), 0
        for k, stops in enumerate(self.routes):
            if loads[k] + self.demand[node] > self.limit:
                continue
            for p, (last, following) in enumerate(zip([0, *stops], [*stops, 0], strict=True)):
                more = self.d[last][node] + self.d[node][following] - self.d[last][following]
                if more < least and draws.below(100) > 0:
                    least, best, at = more, k, p
        if best == len(self.routes):
            self.routes.append([])
            loads.append(0.0)
            least = self.d[0][node] + self.d[node][0]
        self.routes[best].insert(at, node)
        loads[best] = self.load(self.routes[best])
        return float(least)


def anneal(
    distances: np.ndarray,
    demand: np.ndarray,
    limit: float,
    routes: list[list[int]],
    seed: int,
    share: Share,
    *,
    removed: float,
    longest: float,
    hot: float,
    cold: float,
    least: float,
) -> tuple[list[list[int]], int]:
    """(the best routes found, the rounds made)."""
    fleet, draws, made = Fleet(distances, demand, limit, routes), Draws(seed), 0
    best = [list(stops) for stops in routes]
    if not best:
        return best, 0
    near = neighbours(distances, min(len(demand) - 1, 400))
    total = 0.0
    for stops in routes:
        total += fleet.length(stops)
    edge = total / sum(len(stops) + 1 for stops in routes)
    above, lowest = 0.0, 0.0
    while (used := share(made)) is not None:
        heat = edge * hot * (cold / hot) ** used
        kept = [list(stops) for stops in fleet.routes]
        change = fleet.disturb(near, removed, longest, draws)
        made += 1
        if change > -heat * math.log(1 - draws.unit()) + least:
            fleet.routes = kept
            continue
        fleet.tidy()
        above += change
        if above < lowest - least:
            lowest, best = above, [list(stops) for stops in fleet.routes]
    return best, made
