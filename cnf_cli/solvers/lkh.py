"""LKH-3's program on PATH: TSP, ATSP and CVRP, with the paper's settings; free for research only."""

from __future__ import annotations

import shutil

import numpy as np
from pydantic import Field

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers import binary
from cnf_cli.solvers.base import Found, Instance, SolverError
from cnf_cli.solvers.scale import to_integers, whole_units


class Params(Section):
    runs: int = Field(1, ge=1, le=10_000, description="RUNS, as in the paper")
    trials: int = Field(10_000, ge=1, le=10**9, description="MAX_TRIALS, as in the paper")
    seconds: float = Field(600.0, gt=0, le=864_000, description="longest time per instance")
    seed: int = Field(1234, ge=0, lt=2**31, description="as in the paper")


class Solver:
    problems = ("tsp", "atsp", "cvrp")
    licence = "LKH: non-commercial, academic use only"
    package = "build LKH 3.0.8 and put `LKH` on PATH"
    exact = False
    least = 11

    def available(self) -> str | None:
        return "on PATH" if shutil.which("LKH") else None

    def solve(self, instance: Instance, params: Params) -> Found:
        """The best tour of LKH's runs."""
        files = {"instance.txt": problem_text(instance), "settings.par": _settings(instance, params)}
        ran = binary.run("LKH", ["settings.par"], files, "tour.txt", params.seconds, self.package)
        return Found(_tour(instance, ran.answer))


def _settings(instance: Instance, params: Params) -> str:
    special = "SPECIAL\n" if instance.problem == "cvrp" else ""
    return (
        f"{special}PROBLEM_FILE = instance.txt\nOUTPUT_TOUR_FILE = tour.txt\nRUNS = {params.runs}\n"
        f"MAX_TRIALS = {params.trials}\nSEED = {params.seed}\n"
        f"TIME_LIMIT = {max(1, int(params.seconds * 0.9))}\nTRACE_LEVEL = 0\n"
    )


def problem_text(instance: Instance) -> str:
    """The instance in TSPLIB's format: coordinates as int(1e7 x + 0.5), for CVRP int(1e5 x + 0.5), as published."""
    head = f"NAME: cnf\nTYPE: {instance.problem.upper()}\nDIMENSION: {instance.nodes}\n"
    if instance.problem == "cvrp":
        assert instance.demand is not None
        assert instance.capacity is not None
        demand, capacity = whole_units(instance.demand, instance.capacity, 10**6)  # LKH sums demands in 32 bits
        head += f"CAPACITY: {capacity}\n"
        loads = "\n".join(f"{i} {d}" for i, d in enumerate(demand.tolist(), 1))
        tail = f"DEMAND_SECTION\n{loads}\nDEPOT_SECTION\n1\n-1\nEOF\n"
    else:
        tail = "EOF\n"
    if instance.xy is not None and instance.rule in ("euclid", "euc_2d"):
        points = np.asarray(instance.xy, np.float64)
        if instance.rule == "euclid":
            # LKH multiplies weights by 100 in 32 bits: a unit square at 1e7 is the most it takes.
            grid, extent = (1e5 if instance.problem == "cvrp" else 1e7), float(np.abs(points).max())
            points = np.floor(points * (grid if extent <= 1 else grid / extent) + 0.5)
        return head + "EDGE_WEIGHT_TYPE: EUC_2D\n" + binary.coordinate_section(points) + tail
    integers, _ = to_integers(instance.distances(), 2e6)
    rows = "\n".join(" ".join(map(str, row)) for row in integers.tolist())
    return head + f"EDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\nEDGE_WEIGHT_SECTION\n{rows}\n{tail}"


def _tour(instance: Instance, text: str) -> list[int]:
    lines = text.split("TOUR_SECTION", 1)
    if len(lines) != 2:
        raise SolverError("LKH wrote a file without a tour")
    words = lines[1].split()
    if "-1" not in words:
        raise SolverError("LKH wrote a tour without its end")
    nodes = [k - 1 for k in binary.whole_numbers("LKH", words[: words.index("-1")])]
    if instance.problem != "cvrp":
        return nodes
    # LKH copies the depot once per vehicle and numbers the copies after the last customer.
    walk = [0 if k >= instance.nodes else k for k in nodes]
    start = walk.index(0) if 0 in walk else 0
    return walk[start:] + walk[:start]
