"""Nearest neighbour from node 0: the simplest tour anyone would try; built backwards, as in the paper's ATSP table."""

from __future__ import annotations

import numpy as np

from cnf_cli.problems.load import limit
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found, Instance


class Params(Section):
    pass


class Solver:
    problems = ("tsp", "atsp", "cvrp")
    licence = "MIT"
    package = "part of cnf-cli"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "built in"

    def solve(self, instance: Instance, params: Params) -> Found:
        """A tour where each node is the nearest unvisited one; for CVRP the nearest that still fits, else the depot."""
        return Found(_routes(instance) if instance.problem == "cvrp" else nearest_tour(instance.distances()))


def nearest_tour(distances: np.ndarray) -> list[int]:
    """The tour that ends in node 0 and whose every stop was reached from the unvisited node nearest to it."""
    into = distances.copy().T
    tour, here = [0], 0
    into[:, 0] = np.inf
    for _ in range(len(distances) - 1):
        here = int(into[here].argmin())
        into[:, here] = np.inf
        tour.append(here)
    return tour[::-1]


def _routes(instance: Instance) -> list[int]:
    assert instance.demand is not None
    assert instance.capacity is not None
    most = limit(instance.demand, float(instance.capacity))
    distances, load = instance.distances(), 0.0
    open_ = np.ones(instance.nodes, bool)
    open_[0] = False
    tour, here = [0], 0
    while open_.any():
        fits = open_ & (load + instance.demand <= most)
        if fits.any():
            here = int(np.where(fits, distances[here], np.inf).argmin())
            open_[here], load = False, load + float(instance.demand[here])
        else:
            here, load = 0, 0.0
        tour.append(here)
    return tour
