"""Concorde's program on PATH: TSP to proved optimality, with the paper's settings."""

from __future__ import annotations

import re
import shutil

import numpy as np
from pydantic import Field

from cnf_cli.errors import DataError
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers import binary
from cnf_cli.solvers.base import Found, Instance, SolverError
from cnf_cli.solvers.scale import is_symmetric, rounding_slack, to_integers

_CLOSING = re.compile(r"^Optimal Solution:\s*(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
"""What Concorde prints when it has a proof, and only then: the optimum in the units of its file."""
_MATRIX_MOST = 1e7
"""32-bit sums."""


class Params(Section):
    seconds: float = Field(600.0, gt=0, le=864_000, description="longest time per instance")
    seed: int = Field(1234, ge=0, lt=2**31, description="as in the paper")


class Solver:
    problems = ("tsp",)
    licence = "Concorde: free for academic research; ask its authors for other use"
    package = "build Concorde 03.12.19 with QSopt and put `concorde` on PATH"
    exact = True
    least = 13  # refuses fewer than about 8 nodes

    def available(self) -> str | None:
        return "on PATH" if shutil.which("concorde") else None

    def solve(self, instance: Instance, params: Params) -> Found:
        """An optimal tour; on real coordinates proved for distances rounded to 1e-7 of the map, as published."""
        arguments = ["-s", str(params.seed), "-x", "-o", "tour.sol", "instance.tsp"]
        files = {"instance.tsp": problem_text(instance)}
        ran = binary.run("concorde", arguments, files, "tour.sol", params.seconds, self.package)
        closing = _CLOSING.findall(ran.said)
        if not closing:
            raise SolverError("concorde ended without its line 'Optimal Solution: ...': nothing is proved")
        words = binary.whole_numbers("concorde", ran.answer.split())
        if not words or words[0] != instance.nodes or len(words) != instance.nodes + 1:
            raise SolverError(f"concorde wrote a tour of {len(words) - 1} nodes for {instance.nodes}")
        factor = _factor(instance)
        # A leg is off by less than two units: half for each coordinate of both ends, half for its length.
        slack = 4 * rounding_slack(instance.nodes, factor, exact=factor == 1.0)
        return Found(words[1:], proved=True, claimed=float(closing[-1]) / factor, slack=slack)


def _factor(instance: Instance) -> float:
    """What real distances are multiplied by before they are rounded; 1 where the instance's own are whole."""
    if instance.matrix is not None:
        return to_integers(instance.distances(), _MATRIX_MOST)[1]
    if instance.rule != "euclid":
        return 1.0
    return 1e7 / max(1.0, float(np.abs(np.asarray(instance.xy, np.float64)).max()))


def problem_text(instance: Instance) -> str:
    """The instance as a TSPLIB file: rounded rules by name, real coordinates as int(1e7 * x + 0.5)."""
    head = f"NAME: cnf\nTYPE: TSP\nDIMENSION: {instance.nodes}\n"
    if instance.matrix is not None:
        distances = instance.distances()
        if not is_symmetric(distances):
            raise DataError("concorde solves symmetric distances only", hint="use --solver cpsat or elkai")
        integers, _ = to_integers(distances, _MATRIX_MOST)
        rows = "\n".join(" ".join(map(str, row)) for row in integers.tolist())
        return head + f"EDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\nEDGE_WEIGHT_SECTION\n{rows}\nEOF\n"
    points = np.asarray(instance.xy, np.float64)
    name = instance.rule.upper()
    if instance.rule == "euclid":
        points = np.floor(points * _factor(instance) + 0.5)
        name = "EUC_2D"
    return head + f"EDGE_WEIGHT_TYPE: {name}\n{binary.coordinate_section(points)}EOF\n"
