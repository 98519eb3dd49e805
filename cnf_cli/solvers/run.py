"""Find a solver by name, give it one instance, and believe nothing it says until the validator has."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, cast

from cnf_cli import plugins
from cnf_cli.errors import DataError, MissingDependency, RecipeError
from cnf_cli.problems.validate import InvalidTour
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers import exact
from cnf_cli.solvers.base import Answer, Found, Instance, Solver, SolverError

_CHOICES = {"tsp": ("fast_tsp", "elkai"), "cvrp": ("hgs", "pyvrp"), "atsp": ("cpsat", "elkai")}
OWN = ("ils", "descent")
"""Part of this package: always there."""
_PROVABLE = 60
"""Up to here CP-SAT proves an ATSP tour in well under a second."""


@dataclass(frozen=True)
class Info:
    """One line of `cnf solvers`."""

    kind: str
    summary: str
    problems: tuple[str, ...]
    exact: bool
    version: str | None
    licence: str
    package: str


def module_of(kind: str) -> ModuleType:
    """The plugin's module; a dotted name is a solver of the user's own: any module with `Params` and `Solver`."""
    if "." not in kind:
        return plugins.load("solvers", kind)
    try:
        module = importlib.import_module(kind)
    except ImportError as error:
        raise RecipeError(f"the solver module '{kind}' cannot be imported: {error}", hint="`cnf solvers`") from error
    if not hasattr(module, "Solver"):
        raise RecipeError(f"the module '{kind}' has no class Solver", hint="docs/solvers.md shows what it needs")
    return module


@cache
def solver(kind: str) -> Solver:
    """The solver of that name."""
    return cast(Solver, module_of(kind).Solver())


def params_of(kind: str, given: Mapping[str, Any] | Section | None) -> dict[str, Any]:
    """The solver's checked settings as plain values, so that they can be sent to another process."""
    values = given.model_dump() if isinstance(given, Section) else dict(given or {})
    return cast(dict[str, Any], module_of(kind).Params(**values).model_dump())


def listing() -> list[Info]:
    """Every solver there is, installed or not."""
    out = []
    for kind in plugins.kinds("solvers"):
        s = solver(kind)
        out.append(
            Info(kind, plugins.summary("solvers", kind), s.problems, s.exact, s.available(), s.licence, s.package)
        )
    return out


def default_solver(problem: str, n: int) -> str:
    """The best solver installed for instances of n nodes; `ils`, our own, when there is none."""
    if problem not in _CHOICES:
        raise DataError(f"no reference solver for the problem '{problem}'", hint="`cnf solvers`")
    wanted = [k for k in _CHOICES[problem] if k != "cpsat" or n <= _PROVABLE]
    return next((k for k in wanted if solver(k).available()), "ils")


def describe_choice(kind: str, problem: str) -> str:
    """One line on a chosen solver: what, which version, which licence; and what is better, where none is there."""
    s = solver(kind)
    line = f"{kind} {s.available() or ''}".strip() + f" (licence: {s.licence})"
    if kind in OWN and default_solver(problem, 2) in OWN:
        line += f"; this is a search of our own, for a reference by another's: {solver('hgs').package}"
    return line


def default_fallback(problem: str, kind: str) -> tuple[str, ...]:
    """Who is asked when `kind` fails on an instance: the other installed solvers for this problem, `ils` last."""
    known = [*_CHOICES[problem], "pyvrp", "ils"]
    return tuple(k for k in dict.fromkeys(known) if k != kind and solver(k).available())


def require(kind: str, problem: str) -> None:
    """Raises when the solver is not installed or solves other problems."""
    s = solver(kind)
    if problem not in s.problems:
        raise RecipeError(f"the solver '{kind}' does not solve {problem}", hint="`cnf solvers` says which does")
    if s.available() is None:
        raise MissingDependency(f"the solver '{kind}' is not installed", hint=s.package)


def solve_one(instance: Instance, kind: str, params: Mapping[str, Any] | None = None) -> Answer:
    """A feasible answer with its recomputed cost, in this process; else raises `SolverError` or `DataError`."""
    instance.check()
    chosen = solver(kind)
    require(kind, instance.problem)
    start = time.perf_counter()
    small = instance.nodes < chosen.least and exact.solvable(instance)
    settings = module_of(kind).Params(**(params or {}))
    found = exact.solve_small(instance) if small else chosen.solve(instance, settings)
    seconds = time.perf_counter() - start
    tour, cost = _checked(instance, kind, found)
    return Answer(tour, cost, bool(found.proved), seconds, kind, "small: solved exactly by cnf" if small else "")


def _checked(instance: Instance, kind: str, found: Found) -> tuple[tuple[int, ...], float]:
    try:
        tour = tuple(int(node) for node in found.tour)
        cost = instance.cost(tour)
    except (InvalidTour, TypeError, ValueError) as error:
        raise SolverError(f"{kind} returned an infeasible tour: {error}") from error
    claimed = found.claimed
    if claimed is not None and not abs(claimed - cost) <= found.slack + 1e-5 * abs(cost) + 1e-9:
        raise SolverError(f"{kind} says its tour costs {claimed:.9g}, but it costs {cost:.9g}")
    return tour, cost
