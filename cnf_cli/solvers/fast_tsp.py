"""fast-tsp: TSP by local search, optimal on nearly every instance up to a few hundred nodes."""

from __future__ import annotations

import math

from pydantic import Field

from cnf_cli.errors import DataError
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import INSTALL, Found, Instance, version_of
from cnf_cli.solvers.scale import is_symmetric, to_integers


class Params(Section):
    seconds: float = Field(
        0.0, ge=0, le=86_400, description="time per instance; 0 = from n: 0.1 s at 100, 2.5 s at 1000"
    )


def seconds_for(nodes: int) -> float:
    """A few times what the optimum took on idle cores: it is wall time, and 0.02 s at n=50 fell short on busy ones."""
    return max(0.05, 0.1 * math.pow(nodes / 100, 1.4))


class Solver:
    problems = ("tsp",)
    licence = "MIT"
    package = INSTALL
    exact = False
    least = 13

    def available(self) -> str | None:
        return version_of("fast-tsp")

    def solve(self, instance: Instance, params: Params) -> Found:
        """A tour after the time limit. There is no seed: two runs may differ where the search has not settled."""
        import fast_tsp

        distances = instance.distances()
        # Above 20 nodes the library takes an asymmetric matrix without a word and returns a poor tour.
        if not is_symmetric(distances):
            raise DataError("fast_tsp solves symmetric distances only", hint="use --solver elkai or cpsat")
        # It holds distances in 16 bits. The unit square at 46000 (diagonal 65054) is fine enough; rounded rules above
        # 65535 lose their last digits, which the recomputed cost shows as what it is: the cost of a real tour.
        integers, _ = to_integers(distances, 65_054.0)
        tour = fast_tsp.find_tour(
            integers, duration_seconds=params.seconds or seconds_for(instance.nodes), max_threads=1
        )
        return Found(tour)
