"""Iterated local search of our own: TSP and CVRP at the level of specialised libraries, ATSP close; always there."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.search.ils import improve
from cnf_cli.solvers.base import Found, Instance
from cnf_cli.solvers.nearest import Solver as Nearest

ROUNDS = 200
"""Rounds for each node where neither rounds nor seconds are given."""


class Params(Section):
    rounds: int = Field(0, ge=0, le=10**12, description="rounds per instance; 0 = 200 for each node, or by seconds")
    seconds: float = Field(0.0, ge=0, le=86_400, description="longest time per instance; 0 = no limit but the rounds")
    seed: int = Field(1, ge=0, lt=2**63, description="another seed, another search; rounds and seed give the answer")


class Solver:
    problems = ("tsp", "atsp", "cvrp")
    licence = "MIT"
    package = "part of cnf-cli"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "built in"

    def solve(self, instance: Instance, params: Params) -> Found:
        """From the nearest-neighbour tour; the same answer every time for the same rounds and seed."""
        start = tuple(Nearest().solve(instance, None).tour)  # type: ignore[arg-type]
        rounds = params.rounds or (0 if params.seconds else ROUNDS * instance.nodes)
        return Found(improve(instance, start, rounds=rounds, seconds=params.seconds, seed=params.seed)[0])
