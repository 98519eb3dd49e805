"""What goes into a reference solver and what comes out of it: one instance, one answer, or one failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cnf_cli.errors import CnfError, DataError
from cnf_cli.problems.distance import Array, distance_matrix
from cnf_cli.problems.load import limit
from cnf_cli.problems.validate import check_tour

PROBLEMS = ("tsp", "cvrp", "atsp")
INSTALL = 'pip install "cnf-cli[solvers]"'


class SolverError(CnfError):
    """A solver ran and gave no usable answer."""

    code = 1


@dataclass(frozen=True, eq=False)
class Instance:
    """One instance in float64, in the units of its file. With demand, node 0 is the depot and its demand is 0."""

    problem: str
    xy: Array | None = None
    matrix: Array | None = None
    demand: Array | None = None
    """Units of load, not shares of the capacity."""
    capacity: float | None = None
    rule: str = "euclid"

    @property
    def nodes(self) -> int:
        held = self.xy if self.xy is not None else self.matrix
        assert held is not None
        return len(held)

    def distances(self) -> Array:
        """All distances (n, n) by the instance's own rule, so that every solver minimises what the validator counts."""
        if self.matrix is not None:
            out = np.array(self.matrix, np.float64)
            np.fill_diagonal(out, 0.0)  # TSPLIB writes 9999999 there; no tour uses it
            return out
        assert self.xy is not None
        return distance_matrix(self.rule, np.asarray(self.xy, np.float64))

    def cost(self, tour: Sequence[int]) -> float:
        """The cost by the independent validator; raises `InvalidTour` when the tour is not feasible."""
        where = {"matrix": self.matrix} if self.matrix is not None else {"xy": self.xy}
        return check_tour(tour, demand=self.demand, capacity=self.capacity, rule=self.rule, **where)

    def check(self) -> None:
        """Raises `DataError` when no solver could answer: wrong shapes, not finite, a demand no vehicle carries."""
        if self.problem not in PROBLEMS:
            raise DataError(
                f"no reference solver for the problem '{self.problem}'", hint=f"one of {', '.join(PROBLEMS)}"
            )
        if (self.xy is None) == (self.matrix is None):
            raise DataError("an instance has either coordinates or a matrix")
        held = np.asarray(self.xy if self.xy is not None else self.matrix)
        wanted = (len(held), 2) if self.xy is not None else (len(held), len(held))
        if held.shape != wanted or len(held) == 0:
            raise DataError(f"an instance of shape {held.shape} is neither coordinates (n, 2) nor a matrix (n, n)")
        # Bounded as well as finite: squares of 1e200 are inf, and every solver here scales to integers.
        if not (np.abs(held[~np.eye(len(held), dtype=bool)] if self.matrix is not None else held) < 1e15).all():
            raise DataError("the instance has a value that is not finite, or 1e15 and more")
        if self.matrix is not None and (held < 0).any():
            raise DataError("the matrix has a negative weight")
        if self.problem == "cvrp":
            self._check_demand()

    def _check_demand(self) -> None:
        if self.demand is None or self.capacity is None:
            raise DataError("a CVRP instance needs demands and a capacity")
        demand = np.asarray(self.demand, np.float64)
        if demand.shape != (self.nodes,) or not np.isfinite(demand).all() or (demand < 0).any() or demand[0] != 0:
            raise DataError("demands must be one finite number >= 0 per node, and 0 at the depot")
        if not (np.isfinite(self.capacity) and self.capacity > 0):
            raise DataError(f"the capacity is {self.capacity}, not a positive number")
        worst = int(demand.argmax())
        # HGS answers cost 0 and no routes here, without a word.
        if demand[worst] > limit(demand, self.capacity):
            wants = f"customer {worst} wants {demand[worst]:.10g}"
            raise DataError(f"{wants}, more than the capacity {self.capacity:.10g}")


@dataclass(frozen=True)
class Found:
    """What a solver hands back, before anyone has checked it."""

    tour: Sequence[int]
    proved: bool = False
    claimed: float | None = None
    """The cost the solver says it found, in the instance's units, where it says one."""
    slack: float = 0.0
    """How far `claimed` may be off because the solver was given rounded distances."""


@dataclass(frozen=True)
class Answer:
    """A feasible tour with its cost in float64, recomputed by the validator under the instance's rule."""

    tour: tuple[int, ...]
    cost: float
    proved: bool
    seconds: float
    solver: str
    note: str = ""


@dataclass(frozen=True)
class Failure:
    """No solver gave a usable answer; `note` says what each of them did."""

    solver: str
    note: str
    seconds: float = 0.0


class Solver(Protocol):
    """What a plugin file's class `Solver` provides. All but `solve` must be cheap: `cnf solvers` asks every file."""

    problems: tuple[str, ...]
    licence: str
    package: str
    """How to get it, as a command where there is one."""
    exact: bool
    least: int
    """Instances with fewer nodes are solved exactly by our own code: third-party solvers hang or abort on tiny ones."""

    def available(self) -> str | None: ...

    def solve(self, instance: Instance, params: Any) -> Found: ...


def walk(routes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Routes of customers as one walk from the depot with 0 between them, as the validator wants it."""
    out: list[int] = []
    for route in routes:
        if len(route):
            out += [0, *(int(c) for c in route)]
    return tuple(out) if out else (0,)


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
