"""PyVRP: CVRP, TSP and ATSP by iterated local search; the fallback and cross-check of HGS."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import INSTALL, Found, Instance, SolverError, version_of, walk
from cnf_cli.solvers.scale import rounding_slack, to_integers, whole_units


class Params(Section):
    iterations: int = Field(2000, ge=1, le=10**8, description="iterations without improvement")
    seconds: float = Field(60.0, gt=0, le=86_400, description="longest time per instance")
    seed: int = Field(1234, ge=0, lt=2**31)


class Solver:
    problems = ("cvrp", "tsp", "atsp")
    licence = "MIT"
    package = INSTALL
    exact = False
    least = 11

    def available(self) -> str | None:
        return version_of("pyvrp")

    def solve(self, instance: Instance, params: Params) -> Found:
        """The best feasible solution when either limit is reached."""
        import pyvrp
        from pyvrp.stop import MaxRuntime, MultipleCriteria, NoImprovement

        distances = instance.distances()
        # Whole numbers only: a unit square of floats would be all zeros.
        integers, factor = to_integers(distances, 2e6)
        stop = MultipleCriteria([MaxRuntime(params.seconds), NoImprovement(params.iterations)])
        data = _data(instance, integers)
        # Its penalty for a unit of overload ends at 1e5, less than one leg at this scale: an overloaded route would
        # pay off for ever, and no feasible solution be found. Too high a penalty overflows 64 bits.
        units = sum(sum(client.delivery) for client in data.clients())
        highest = min(max(1e5, 100.0 * float(integers.max())), 1e17 / max(units, 1))
        settings = pyvrp.SolveParams(penalty=pyvrp.PenaltyParams(max_penalty=highest))
        result = pyvrp.solve(data, stop, params.seed, collect_stats=False, params=settings)
        if not result.is_feasible():
            raise SolverError("pyvrp found no feasible solution")
        routes = [[v.idx + 1 for v in route if v.is_client()] for route in result.best.routes()]
        tour = walk(routes) if instance.problem == "cvrp" else (0, *routes[0])
        whole = bool(abs(distances * factor - integers).max() <= 1e-6)
        return Found(tour, claimed=result.cost() / factor, slack=rounding_slack(len(tour) + 1, factor, whole))


def _data(instance: Instance, integers):  # type: ignore[no-untyped-def]
    import pyvrp

    n = instance.nodes
    xy = instance.xy if instance.xy is not None else [(0.0, 0.0)] * n
    where = [pyvrp.Location(float(x), float(y)) for x, y in xy]
    if instance.problem == "cvrp":
        assert instance.demand is not None
        assert instance.capacity is not None
        demand, capacity = whole_units(instance.demand, instance.capacity, 10**9)
        clients = [pyvrp.Client(i, delivery=[int(demand[i])]) for i in range(1, n)]
        fleet = pyvrp.VehicleType(num_available=n - 1, capacity=[capacity])
    else:
        clients = [pyvrp.Client(i) for i in range(1, n)]
        fleet = pyvrp.VehicleType(num_available=1)
    return pyvrp.ProblemData(where, clients, [pyvrp.Depot(0)], [fleet], [integers], [integers * 0])
