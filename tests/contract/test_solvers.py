"""Every solver file keeps the same promises: honest about itself, feasible on ordinary and odd instances."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cnf_cli import plugins
from cnf_cli.errors import DataError
from cnf_cli.solvers.base import Answer, Failure, Instance
from cnf_cli.solvers.pool import solve_all
from cnf_cli.solvers.run import listing, solver

KINDS = plugins.kinds("solvers")
HERE = [k for k in KINDS if solver(k).available()]
BINARIES = ("concorde", "lkh")
PAIRS = [(k, p) for k in HERE if k not in BINARIES for p in solver(k).problems]


def instances(problem: str) -> dict[str, Instance]:
    """Ordinary and degenerate instances of a problem, by what is special about them."""
    rng = np.random.default_rng(3)
    if problem == "atsp":
        return {f"n={n}": Instance("atsp", matrix=rng.random((n, n))) for n in (1, 2, 3, 5, 12, 13, 15)} | {
            "all zero": Instance("atsp", matrix=np.zeros((14, 14))),
            "diagonal 9999999": Instance("atsp", matrix=rng.integers(1, 99, (14, 14)) + np.eye(14) * 9999999),
        }
    points = {f"n={n}": rng.random((n, 2)) for n in (1, 2, 3, 5, 12, 14)} | {
        "all equal": np.full((14, 2), 0.5),
        "on a line": np.linspace(0, 1, 14)[:, None] * [1.0, 0.0],
        "doubles": np.repeat(rng.random((7, 2)), 2, axis=0),
        "large": rng.random((14, 2)) * 1e7,
        "negative": rng.random((14, 2)) - 5,
        "tiny": rng.random((14, 2)) * 1e-6,
    }
    rounded = {
        f"rule {r}": Instance("tsp", xy=rng.integers(0, 99, (14, 2)) * 1.0, rule=r)
        for r in ("euc_2d", "ceil_2d", "att")
    }
    made = {name: Instance("tsp", xy=xy) for name, xy in points.items()} | rounded
    if problem == "tsp":
        return made
    demands = {name: np.r_[0.0, rng.integers(1, 10, i.nodes - 1)] for name, i in made.items()}
    made = {k: Instance("cvrp", i.xy, demand=demands[k], capacity=20.0, rule=i.rule) for k, i in made.items()}
    xy = rng.random((14, 2))
    return made | {
        "each fills a vehicle": Instance("cvrp", xy, demand=np.r_[0.0, [20.0] * 13], capacity=20.0),
        "no demand": Instance("cvrp", xy, demand=np.zeros(14), capacity=20.0),
        "shares": Instance("cvrp", xy, demand=np.r_[0.0, rng.random(13) * 0.3], capacity=1.0),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_describes_itself(kind: str) -> None:
    """A file says what it is and solves, names its licence and how to get it, and has default settings."""
    info = next(i for i in listing() if i.kind == kind)
    assert info.summary
    assert set(info.problems) <= {"tsp", "cvrp", "atsp"}
    assert info.problems
    assert info.licence
    assert info.package
    plugins.params("solvers", kind)()


@pytest.mark.parametrize(("kind", "problem"), PAIRS)
def test_feasible_on_odd_instances(kind: str, problem: str) -> None:
    """Every tour is feasible and every cost finite, by the solver itself: no crash, no hang, no fallback."""
    cases = instances(problem)
    quick = {"iterations": 100} if kind in ("hgs", "pyvrp") else None
    out = solve_all(list(cases.values()), kind, quick, jobs=1, timeout_seconds=60, fallback=())
    bad = {name: o.note for name, o in zip(cases, out, strict=True) if not isinstance(o, Answer)}
    assert not bad
    for case, answer in zip(cases.values(), out, strict=True):
        assert isinstance(answer, Answer)
        assert answer.cost == case.cost(answer.tour)
        assert answer.solver == kind
        assert not answer.proved or solver(kind).exact or "small" in answer.note


@pytest.mark.parametrize("kind", HERE)
def test_impossible_demand_is_refused(kind: str) -> None:
    """A customer no vehicle can serve is named, whatever the solver, and nobody else is asked."""
    if "cvrp" not in solver(kind).problems:
        pytest.skip("solves other problems")
    rng = np.random.default_rng(0)
    bad = Instance("cvrp", rng.random((14, 2)), demand=np.r_[0.0, [1.0] * 12, 21.0], capacity=20.0)
    (out,) = solve_all([bad], kind, jobs=1)
    assert isinstance(out, Failure)
    assert "customer 13 wants 21" in out.note
    assert "descent" not in out.note


def test_asymmetric_input_is_refused_by_symmetric_solvers() -> None:
    """fast_tsp would take an asymmetric matrix without a word; the file refuses it."""
    if solver("fast_tsp").available() is None:
        pytest.skip("fast-tsp is not installed")
    from cnf_cli.solvers.run import solve_one

    with pytest.raises(DataError, match="symmetric"):
        solve_one(Instance("tsp", matrix=np.random.default_rng(0).random((25, 25))), "fast_tsp")


def test_listing_and_pool_import_no_torch_and_no_solver() -> None:
    """`cnf solvers` stays quick: asking what is there imports neither torch nor any third-party solver."""
    code = (
        "import sys; from cnf_cli.solvers import pool, run; run.listing();"
        "bad = {'torch', 'ortools', 'pyvrp', 'hygese', 'elkai', 'fast_tsp', 'scipy', 'dask', 'ray'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
