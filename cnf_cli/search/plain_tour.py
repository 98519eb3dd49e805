"""Iterated local search on a closed tour, step by step: what cpp/climb.h does, for reading, tests and no compiler."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from cnf_cli.search.draws import Draws

LONGEST = 3
"""Nodes that are carried to another place at once."""
Share = Callable[[int], float | None]
"""Round -> the share of the budget that is used, None when it is used up."""


def neighbours(distances: np.ndarray, k: int) -> list[list[int]]:
    """The k nodes that are nearest to go to from each node, nearest first; of equal ones the lower first."""
    n, lists = len(distances), []
    for a in range(n):
        order = np.lexsort((np.arange(n), distances[a]))
        lists.append([int(v) for v in order if v != a][:k])
    return lists


class Tour:
    """A closed tour with the place of every node; `reverse`, `carry` and `exchange` rewrite the shorter side."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.order = list(nodes)
        self.place = {node: p for p, node in enumerate(self.order)}

    def at(self, position: int) -> int:
        return self.order[position % len(self.order)]

    def next(self, node: int) -> int:
        return self.at(self.place[node] + 1)

    def prev(self, node: int) -> int:
        return self.at(self.place[node] - 1)

    def _write(self, position: int, nodes: Sequence[int]) -> None:
        for t, node in enumerate(nodes):
            p = (position + t) % len(self.order)
            self.order[p], self.place[node] = node, p

    def reverse(self, a: int, b: int) -> None:
        """The path from node a forward to node b runs the other way."""
        n, i, j = len(self.order), self.place[a], self.place[b]
        length = (j - i) % n + 1
        if 2 * length > n:
            i, length = (j + 1) % n, n - length
        self._write(i, [self.at(i + t) for t in range(length)][::-1])

    def carry(self, head: int, length: int, left: int, turned: bool) -> None:
        """The path of `length` nodes from `head` is laid between `left` and the node after it."""
        n, i = len(self.order), self.place[head]
        j = (i + length - 1) % n
        moved = [self.at(i + t) for t in range(length)]
        ahead = (self.place[left] - j) % n
        behind = n - length - ahead
        laid = moved[::-1] if turned else moved
        if ahead <= behind:
            between = [self.at(j + 1 + t) for t in range(ahead)]
            self._write(i, between + laid)
        else:
            between = [self.at(i - behind + t) for t in range(behind)]
            self._write((j - behind - length + 1) % n, laid + between)

    def exchange(self, first: int, one: int, two: int) -> None:
        """Two paths that follow each other from position `first` change places; the longest of three stays."""
        n = len(self.order)
        rest = n - one - two
        if one >= two and one >= rest:
            first, one, two = first + one, two, rest
        elif two >= rest:
            first, one, two = first + one + two, rest, one
        paths = [self.at(first + t) for t in range(one + two)]
        self._write(first, paths[one:] + paths[:one])


class Descent:
    """Waiting nodes, and the moves that are tried around them."""

    def __init__(self, distances: np.ndarray, near: Sequence[Sequence[int]], least: float) -> None:
        self.d, self.near, self.least = distances.tolist(), near, least
        self.waiting: deque[int] = deque()

    def wake(self, *nodes: int) -> None:
        for node in nodes:
            if node not in self.waiting:
                self.waiting.append(node)

    def run(self, tour: Tour) -> float:
        """How much shorter the tour became; no waiting node has a better move then."""
        gained = 0.0
        while self.waiting:
            node = self.waiting.popleft()
            while (gain := self.better(tour, node)) > 0:
                gained += gain
        return gained

    def better(self, tour: Tour, a: int) -> float:
        raise NotImplementedError


class Symmetric(Descent):
    """2-opt and Or-opt, for distances that are the same both ways."""

    def better(self, tour: Tour, a: int) -> float:
        """The first better move that joins node a to a neighbour c and gives up the edge from a to b."""
        for back in (False, True):
            b = tour.prev(a) if back else tour.next(a)
            for c in self.near[a]:
                saved = self.d[a][b] - self.d[a][c]
                if saved <= self.least:
                    break
                gain = self._uncross(tour, a, b, c, back, saved) or self._move(tour, a, b, c, back, saved)
                if gain > 0:
                    return gain
        return 0.0

    def _uncross(self, tour: Tour, a: int, b: int, c: int, back: bool, saved: float) -> float:
        e = tour.prev(c) if back else tour.next(c)
        gain = saved + self.d[c][e] - self.d[b][e]
        if gain <= self.least:
            return 0.0
        tour.reverse(*((a, e) if back else (b, c)))
        self.wake(a, b, c, e)
        return float(gain)

    def _move(self, tour: Tour, a: int, b: int, c: int, back: bool, saved: float) -> float:
        """One to three nodes, from a away from b, are laid beside c so that a and c meet."""
        end = a
        for length in range(1, LONGEST + 1):
            if end == c:
                break
            f = tour.next(end) if back else tour.prev(end)
            if f == b:
                return 0.0
            closed = saved + self.d[end][f] - self.d[f][b]
            for before in (False, True):
                x = tour.prev(c) if before else tour.next(c)
                if (c == f and x == end) or (c == b and x == a):
                    continue
                gain = closed + self.d[c][x] - self.d[end][x]
                if gain > self.least:
                    tour.carry(a if back else end, length, x if before else c, back == before)
                    self.wake(a, b, c, x, end, f)
                    return float(gain)
            end = f
        return 0.0


class Directed(Descent):
    """Segment insertion: a -> a2 ... b -> b2 ... c -> c2 becomes a -> b2 ... c -> a2 ... b -> c2; nothing turns."""

    def better(self, tour: Tour, a: int) -> float:
        """The first better exchange that gives up the edge from a."""
        a2, n = tour.next(a), len(tour.order)
        for b2 in self.near[a]:
            saved = self.d[a][a2] - self.d[a][b2]
            if saved <= self.least:
                break
            if b2 == a2:
                continue
            b = tour.prev(b2)
            one = (tour.place[b] - tour.place[a]) % n
            for c2 in self.near[b]:
                twice = saved + self.d[b][b2] - self.d[b][c2]
                if twice <= self.least:
                    break
                c = tour.prev(c2)
                both = (tour.place[c] - tour.place[a]) % n
                gain = twice + self.d[c][c2] - self.d[c][a2]
                if both > one and gain > self.least:
                    tour.exchange(tour.place[a2], one, both - one)
                    self.wake(a, a2, b, b2, c, c2)
                    return float(gain)
        return 0.0


def climb(
    distances: np.ndarray,
    start: Sequence[int],
    seed: int,
    share: Share,
    *,
    near: int,
    reach: int,
    heat: float,
    least: float,
) -> tuple[list[int], int]:
    """(the best tour found, the rounds made)."""
    n, d = len(start), distances.tolist()
    kind = Symmetric if np.array_equal(distances, distances.T) else Directed
    descent = kind(distances, neighbours(distances, near), least)
    tour, draws, made = Tour(start), Draws(seed), 0
    descent.wake(*tour.order)
    descent.run(tour)
    longest = min(reach, (n - 2) // 3)
    if longest < 1:
        return tour.order, 0
    length = 0.0
    for p in range(n):
        length += d[tour.at(p)][tour.at(p + 1)]
    warmth = heat * length / n
    above, lowest, best = 0.0, 0.0, list(tour.order)
    while (used := share(made)) is not None:
        first, one, two = draws.below(n), 1 + draws.below(longest), 1 + draws.below(longest)
        chance = draws.unit()
        a, a2, b, b2, c, c2 = (tour.at(first + t) for t in (0, 1, one, one + 1, one + two, one + two + 1))
        added = d[a][b2] + d[c][a2] + d[b][c2] - d[a][a2] - d[b][b2] - d[c][c2]
        kept = Tour(tour.order)
        tour.exchange((first + 1) % n, one, two)
        descent.wake(a, a2, b, b2, c, c2)
        change = added - descent.run(tour)
        made += 1
        if change > -warmth * (1 - used) * math.log(1 - chance) + least:
            tour = kept
            continue
        above += change
        if above < lowest - least:
            lowest, best = above, list(tour.order)
    return best, made
