"""How a policy of the zoo does on more nodes than it was made for: what its card measured, and what lies between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from cnf_cli.zoo.cards import Card, Gap

COUNTS = {"tsp": {50: 20, 100: 20, 200: 20, 500: 8, 1000: 4}, "cvrp": {50: 20, 100: 20, 200: 20, 500: 3, 1000: 3}}
"""Instances that a card measures at other numbers of nodes; costs of large uniform maps differ little."""
FARTHEST = 10
"""So many times its own n a policy is measured; beyond, nobody would use it."""


@dataclass(frozen=True)
class Expected:
    """A gap to be expected, in percent above a good solver."""

    percent: float
    at_least: bool
    """True beyond the largest measured size, where it is larger."""

    @property
    def told(self) -> str:
        return f"{'more than' if self.at_least else 'about'} {self.percent:.2g}%"


def others(one: Card) -> dict[int, int]:
    """Number of nodes -> instances, for the sizes above its own at which a card is measured."""
    return {n: count for n, count in COUNTS.get(one.kind, {}).items() if one.n < n <= FARTHEST * one.n}


def expected(one: Card, n: int, copies: int) -> Expected | None:
    """The gap on uniform maps of n nodes, between measured sizes by the logarithm of n; None where none is measured."""
    points = sorted(_measured(one, copies).items())
    if len(points) < 2 or n < points[0][0]:
        return None
    for (low, before), (high, after) in pairwise(points):
        if n <= high:
            share = math.log(n / low) / math.log(high / low)
            return Expected(before + share * (after - before), at_least=False)
    return Expected(points[-1][1], at_least=True)


def _measured(one: Card, copies: int) -> dict[int, float]:
    """Nodes -> gap, at the most copies that were measured up to `copies`."""
    found: dict[int, Gap] = {}
    for gap in one.gaps:
        n = gap.nodes or (one.n if gap.set == "uniform" else None)
        if n is not None and gap.augment <= max(1, copies) and (n not in found or gap.augment > found[n].augment):
            found[n] = gap
    return {n: gap.gap_percent for n, gap in found.items()}
