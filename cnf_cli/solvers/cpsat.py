"""OR-tools CP-SAT: ATSP with a proof of optimality, up to about 100 nodes; symmetric TSP too, but slowly."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import INSTALL, Found, Instance, SolverError, version_of
from cnf_cli.solvers.scale import rounding_slack, to_integers


class Params(Section):
    seconds: float = Field(60.0, gt=0, le=86_400, description="longest time per instance; then the best tour, unproved")
    seed: int = Field(1234, ge=0, lt=2**31)


class Solver:
    problems = ("atsp", "tsp")
    licence = "Apache-2.0"
    package = INSTALL
    exact = True
    least = 4

    def available(self) -> str | None:
        return version_of("ortools")

    def solve(self, instance: Instance, params: Params) -> Found:
        """An optimal tour and its proof, or the best tour when time is up.

        Real distances are rounded to 1e9 per largest distance first: the proof then holds to about n * 1e-9.
        """
        # Cannot be imported into one process with highspy: another reason for worker processes.
        from ortools.sat.python import cp_model

        distances = instance.distances()
        integers, factor = to_integers(distances, 1e9)
        n = instance.nodes
        model = cp_model.CpModel()
        arcs = [(i, j, model.new_bool_var("")) for i in range(n) for j in range(n) if i != j]
        model.add_circuit(arcs)
        model.minimize(
            cp_model.LinearExpr.weighted_sum([a[2] for a in arcs], [int(integers[i, j]) for i, j, _ in arcs])
        )
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # the pool runs one process per core
        solver.parameters.max_time_in_seconds = params.seconds
        solver.parameters.random_seed = params.seed
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise SolverError(f"cpsat found no tour in {params.seconds:g} s", hint="allow more time, or use elkai")
        follows = {i: j for i, j, used in arcs if solver.boolean_value(used)}
        tour = [0]
        while len(tour) < n:
            tour.append(follows[tour[-1]])
        whole = bool(abs(distances * factor - integers).max() <= 1e-6)
        slack = rounding_slack(n, factor, whole)
        return Found(tour, status == cp_model.OPTIMAL, solver.objective_value / factor, slack)
