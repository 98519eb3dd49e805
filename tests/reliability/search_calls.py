"""Calls of the searches with anything, and what an answer has to be; `kernel_fuzz` makes and spoils them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cnf_cli.search import ils

Call = dict[str, Any]
MOST_ROUNDS, MOST_SECONDS = 500, 0.01


class SearchCalls:
    """Sound arguments of one search after another."""

    def __init__(self, dice: random.Random, rng: torch.Generator) -> None:
        self.dice, self.rng = dice, rng

    def tours(self) -> tuple[Callable[..., Any], Call]:
        """Closed tours, with distances that are the same both ways or not."""
        b, n = self.dice.randint(1, 3), self.dice.choice([1, 2, 3, 4, 5, 8, 13, 40])
        order = torch.stack([torch.randperm(n, generator=self.rng) for _ in range(b)]).int()
        call: Call = {"distances": self.distances(b, n), "order": order, "seeds": self.seeds(b)}
        call |= {"near": self.dice.choice([1, 2, 8, n]), "reach": self.dice.choice([1, 3, 50]), "heat": 0.4}
        return tours, call | self.budget(b)

    def routes(self) -> tuple[Callable[..., Any], Call]:
        """Walks through a depot."""
        b, n = self.dice.randint(1, 3), self.dice.choice([2, 3, 4, 5, 8, 13, 40])
        demand = torch.randint(0, 10, (b, n), generator=self.rng).double()
        most = float(self.dice.choice([9, 12, 30]))
        walks = torch.zeros(b, 2 * n + self.dice.choice([0, 0, 3]), dtype=torch.int32)
        for i in range(b):
            load, t = 0.0, 1
            for node in (torch.randperm(n - 1, generator=self.rng) + 1).tolist():
                if load + float(demand[i, node]) > most:
                    load, t = 0.0, t + 1
                walks[i, t], load, t = node, load + float(demand[i, node]), t + 1
        call: Call = {"distances": self.distances(b, n), "demand": demand, "limit": torch.full((b,), most).double()}
        call |= {"walks": walks, "seeds": self.seeds(b)}
        call |= {"removed": self.dice.choice([1.0, 10.0]), "longest": 10.0, "hot": 0.7, "cold": 0.07}
        return routes, call | self.budget(b)

    def distances(self, b: int, n: int) -> Tensor:
        """Between points, by direction, or with many that are equal."""
        x = torch.rand(b, n, n, generator=self.rng, dtype=torch.float64)
        if self.dice.random() < 0.3:
            x = (3 * x).floor()
        return x + x.mT if self.dice.random() < 0.5 else x

    def seeds(self, b: int) -> Tensor:
        return torch.randint(2**62, (b,), generator=self.rng)

    def budget(self, b: int) -> Call:
        rounds = self.dice.choice([1, 40, 40, 0])
        made, threads = torch.zeros(b, dtype=torch.int64), self.dice.choice([1, 1, 2])
        return {"rounds": rounds, "seconds": 0.0 if rounds else 0.001, "made": made, "threads": threads}


def hurried(call: Call) -> list[Any]:
    """The arguments in their order, with a budget that has an end."""
    rounds, seconds = min(call["rounds"], MOST_ROUNDS), call["seconds"]
    if rounds <= 0 and seconds > MOST_SECONDS:
        seconds = MOST_SECONDS
    given = call | {"rounds": rounds, "seconds": seconds, "seeds": call["seeds"].view(torch.uint64)}
    return [value.numpy() if isinstance(value, Tensor) else value for value in given.values()]


def tours(**call: Any) -> None:
    """Every answer visits each node once and is no longer than what was given."""
    before = call["order"].clone()
    ils._search.tours(*hurried(call))
    for d, was, found in zip(call["distances"], before.tolist(), call["order"].tolist(), strict=True):
        assert sorted(found) == list(range(len(d)))
        shorter(d, was, found)


def routes(**call: Any) -> None:
    """Every answer serves each customer once and is no longer than what was given."""
    before = call["walks"].clone()
    ils._search.routes(*hurried(call))
    for d, was, found in zip(call["distances"], before.tolist(), call["walks"].tolist(), strict=True):
        assert sorted(node for node in found if node) == list(range(1, len(d)))
        shorter(d, was, found)


def shorter(d: Tensor, was: list[int], found: list[int]) -> None:
    """Up to rounding: a search adds up what it gains."""
    lengths = [float(d[walk, walk[1:] + walk[:1]].sum()) for walk in (was, found)]
    assert lengths[1] <= lengths[0] + 1e-9 * len(was) * float(d.max()), lengths
