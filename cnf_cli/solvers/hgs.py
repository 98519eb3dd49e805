"""HGS-CVRP through hygese: CVRP, the best quality per second of the solvers here."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers import nearest
from cnf_cli.solvers.base import INSTALL, Found, Instance, version_of, walk


class Params(Section):
    iterations: int = Field(2000, ge=1, le=10**8, description="iterations without improvement (the paper: 20000)")
    seconds: float = Field(0.0, ge=0, le=86_400, description="0 = stop after the iterations; else restart until then")
    seed: int = Field(1234, ge=0, lt=2**31)


class Solver:
    problems = ("cvrp",)
    licence = "MIT"
    package = INSTALL
    exact = False
    least = 11  # hangs for one customer

    def available(self) -> str | None:
        return version_of("hygese")

    def solve(self, instance: Instance, params: Params) -> Found:
        """The best solution of one run. With `seconds` HGS restarts after its iterations until all the time is used."""
        import hygese

        if not instance.distances().any():
            return nearest.Solver().solve(instance, nearest.Params())  # segfaults where all nodes are one point
        data, factor = _data(instance)
        settings = hygese.AlgorithmParameters(
            nbIter=params.iterations, timeLimit=params.seconds, seed=params.seed % 2**31
        )
        found = hygese.Solver(settings, verbose=False).solve_cvrp(data, rounding=False)
        slack = 0.0 if factor is None else 1e-3 * instance.nodes / factor
        return Found(walk(found.routes), claimed=found.cost / (factor or 1.0), slack=slack)


def _data(instance: Instance) -> tuple[dict[str, Any], float | None]:
    """HGS's input, and the factor its costs are multiplied by."""
    assert instance.demand is not None
    data: dict[str, Any] = {
        "demands": np.asarray(instance.demand, float),
        "vehicle_capacity": float(instance.capacity or 0),
    }
    if 0 < float(data["demands"].max()) < 1:
        # With demands that are shares of a vehicle a short run ended with no routes at all (100 iterations, 13
        # customers); with larger units it does not, probably because it penalises per unit of overload. A power of two
        # changes no sum.
        units = 2.0 ** np.ceil(np.log2(64.0 / data["demands"].max()))
        data |= {"demands": data["demands"] * units, "vehicle_capacity": data["vehicle_capacity"] * units}
    if not instance.demand.any():
        # It also segfaults without any demand; one vehicle that can serve everybody is the same problem.
        data |= {"demands": np.r_[0.0, np.ones(instance.nodes - 1)], "vehicle_capacity": float(instance.nodes)}
    if instance.xy is not None:
        # Its coordinates must not be negative, and from 1e5 on it segfaults: the map is shifted and scaled to 1e4.
        moved = np.asarray(instance.xy, float) - np.min(instance.xy, axis=0)
        factor = 1e4 / max(float(moved.max()), 1e-300) if moved.max() > 0 else 1.0
        data["x_coordinates"], data["y_coordinates"] = (moved * factor).T
        if instance.rule == "euclid":
            return data, factor
    # Rounded rules: their own matrix, so that HGS minimises what the library counts; 1e4 again for the largest entry.
    distances = instance.distances()
    largest = float(distances.max(initial=0.0))
    factor = 1.0 if 0 < largest < 5e4 else 1e4 / largest if largest > 0 else 1.0
    data["distance_matrix"] = distances * factor
    return data, factor
