"""Local search of our own from the nearest-neighbour tour: always there, 2% (TSP) to 10% (CVRP) from optimal."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found, Instance, walk
from cnf_cli.solvers.moves import improve_routes, improve_tour
from cnf_cli.solvers.nearest import Solver as Nearest


class Params(Section):
    seconds: float = Field(60.0, gt=0, le=86_400, description="longest time per instance")


class Solver:
    problems = ("tsp", "atsp", "cvrp")
    licence = "MIT"
    package = "part of cnf-cli"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "built in"

    def solve(self, instance: Instance, params: Params) -> Found:
        """A tour no single move improves (2-opt, Or-opt; between routes: move, swap, swap tails), if time allows."""
        return Found(descend(instance, tuple(Nearest().solve(instance, None).tour), params.seconds))  # type: ignore[arg-type]


def descend(instance: Instance, tour: tuple[int, ...], seconds: float = 60.0) -> tuple[int, ...]:
    """The given feasible tour, improved; never worse."""
    distances = instance.distances()
    if instance.problem != "cvrp":
        return tuple(improve_tour(distances, list(tour), seconds))
    assert instance.demand is not None
    assert instance.capacity is not None
    routes: list[list[int]] = [[]]
    for node in tour:
        if node:
            routes[-1].append(node)
        elif routes[-1]:
            routes.append([])
    return walk(improve_routes(distances, instance.demand, instance.capacity, routes, seconds))
