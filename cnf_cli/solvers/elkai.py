"""LKH 3.0.8 through elkai: TSP and ATSP, near-optimal; free for research only, not for commercial use."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import INSTALL, Found, Instance, version_of
from cnf_cli.solvers.scale import to_integers


class Params(Section):
    runs: int = Field(
        3, ge=1, le=10_000, description="independent runs of LKH, best kept (the library's default is 10)"
    )


class Solver:
    problems = ("tsp", "atsp")
    licence = "LKH: non-commercial, academic use only"
    package = INSTALL
    exact = False
    least = 13  # below 3 nodes elkai refuses; LKH is fragile on a handful of nodes

    def available(self) -> str | None:
        return version_of("elkai")

    def solve(self, instance: Instance, params: Params) -> Found:
        """The best tour of `runs` runs. It holds the GIL and cannot be stopped: only the pool's time limit ends it."""
        import elkai

        # LKH reads whole numbers: floats in [0, 1] all become 0 and give a garbage tour; weights of 1e8 overflow its
        # 32 bits (it multiplies by 100) and abort the process. 2e6 leaves the unit square at 1e6 and room above.
        integers, _ = to_integers(instance.distances(), 2e6)
        tour = elkai.DistanceMatrix(integers.tolist()).solve_tsp(runs=params.runs)
        return Found(tour[:-1])
