"""Our own solvers and helpers, and the quality of the installed ones against the published references."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnf_cli.evaluation.statistics import gaps
from cnf_cli.formats import sets, tsplib
from cnf_cli.solvers import exact, run, scale
from cnf_cli.solvers.base import Answer, Instance
from cnf_cli.solvers.descent import descend
from cnf_cli.solvers.farthest import farthest_tours
from cnf_cli.solvers.nearest import nearest_tour
from cnf_cli.solvers.pool import solve_all


def length(d: np.ndarray, tour: tuple[int, ...]) -> float:
    return float(sum(d[a, b] for a, b in zip(tour, [*tour[1:], tour[0]], strict=True)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 7])
def test_held_karp_is_optimal(n: int) -> None:
    """On asymmetric matrices the tour costs what the best of all permutations costs."""
    for seed in range(5):
        d = np.random.default_rng(seed).random((n, n))
        best = min(length(d, (0, *p)) for p in itertools.permutations(range(1, n)))
        assert length(d, exact.held_karp(d)) == pytest.approx(best, rel=1e-12)


def test_small_cvrp_is_optimal() -> None:
    """The split into routes costs what the best over all walks with depot stops costs."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        case = Instance("cvrp", rng.random((6, 2)), demand=np.r_[0.0, rng.integers(1, 6, 5)], capacity=8.0)
        d, assert_demand = case.distances(), case.demand
        assert assert_demand is not None
        best = np.inf
        for order in itertools.permutations(range(1, 6)):
            for stops in itertools.product([False, True], repeat=4):
                walk = [0, order[0]]
                for stop, node in zip(stops, order[1:], strict=True):
                    walk += [0, node] if stop else [node]
                loads = np.split(assert_demand[walk], np.flatnonzero(np.array(walk) == 0))
                if max(part.sum() for part in loads) <= 8:
                    best = min(best, length(d, tuple(walk)))
        assert case.cost(exact.solve_small(case).tour) == pytest.approx(best, rel=1e-12)


@given(st.integers(0, 10_000), st.integers(4, 25), st.sampled_from(["tsp", "atsp", "cvrp"]))
@settings(max_examples=60, deadline=None)
def test_descent_is_feasible_and_never_worse(seed: int, n: int, problem: str) -> None:
    """From any feasible tour the descent ends in a feasible one that costs no more."""
    rng = np.random.default_rng(seed)
    start = tuple(int(v) for v in rng.permutation(n))
    if problem == "atsp":
        case = Instance("atsp", matrix=rng.random((n, n)))
    elif problem == "tsp":
        case = Instance("tsp", xy=rng.random((n, 2)))
    else:
        case = Instance("cvrp", rng.random((n, 2)), demand=np.r_[0.0, rng.integers(1, 9, n - 1)], capacity=12.0)
        start = tuple(v for c in rng.permutation(n - 1) + 1 for v in (0, int(c)))
    assert case.cost(descend(case, start)) <= case.cost(start) + 1e-12


def test_descent_ends_where_no_reversal_and_no_single_move_helps() -> None:
    """The tour is a local optimum by brute force, for symmetric and asymmetric distances: prices are exact."""
    for seed in range(4):
        d = np.random.default_rng(seed).random((9, 9))
        tour = descend(Instance("atsp", matrix=d), tuple(range(9)))
        own = length(d, tour)
        for i, j in itertools.combinations(range(10), 2):
            assert length(d, tour[:i] + tour[i:j][::-1] + tour[j:]) >= own - 1e-9
        for i, j in itertools.permutations(range(9), 2):
            rest = tour[:i] + tour[i + 1 :]
            assert length(d, (*rest[:j], tour[i], *rest[j:])) >= own - 1e-9


def test_nearest_is_built_backwards_from_node_0() -> None:
    """Every stop is the unvisited node with the cheapest arc into the stop after it; the tour ends in node 0."""
    d = np.random.default_rng(0).random((8, 8))
    np.fill_diagonal(d, 0)
    tour = nearest_tour(d)
    assert tour[-1] == 0
    for k in range(len(tour) - 2, -1, -1):
        assert d[tour[k], tour[k + 1]] == min(d[v, tour[k + 1]] for v in tour[: k + 1])


def test_farthest_tours_are_permutations_and_optimal_for_three() -> None:
    """Each start gives a tour of all nodes; three nodes leave nothing to choose but the better direction."""
    d = np.random.default_rng(1).random((11, 11))
    assert (np.sort(farthest_tours(d, np.arange(11)), axis=1) == np.arange(11)).all()
    small = d[:3, :3]
    tours = farthest_tours(small, np.arange(3))
    assert min(length(small, tuple(t)) for t in tours) == pytest.approx(length(small, exact.held_karp(small)))


@given(st.integers(0, 1000), st.floats(1e-6, 1e9), st.sampled_from([65_054.0, 2e6, 1e9]))
@settings(max_examples=60, deadline=None)
def test_integer_distances_fit_and_are_close(seed: int, size: float, most: float) -> None:
    """Scaled distances never exceed the limit and are within half a step of the real ones."""
    d = np.random.default_rng(seed).random((6, 6)) * size
    integers, factor = scale.to_integers(d, most)
    assert integers.max() <= most
    assert np.abs(integers / factor - d).max() <= 0.5 / factor * (1 + 1e-6) + 1e-12 * size


def test_whole_numbers_stay_what_they_are() -> None:
    """Integer rules are passed on unscaled, the field's ATSP files at 1e6, and whole demands as their units."""
    assert scale.to_integers(np.array([[0.0, 7.0], [9.0, 0.0]]), 1e6)[1] == 1.0
    assert scale.to_integers(np.array([[0.0, 0.117171], [0.278067, 0.0]]), 1e6)[1] == 1e6
    shares = (np.float32([0, 3, 7]) / np.float32(50)).astype(np.float64) * 50
    assert scale.whole_units(shares, 50.0, 10**9)[0].tolist() == [0, 3, 7]
    assert scale.whole_units(np.array([0, 0.25]), 1.0, 1000)[0].tolist() == [0, 250]


def test_default_solver_takes_the_best_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is fast_tsp/elkai, hgs/pyvrp, cpsat for small ATSP/elkai; our own search when nothing is installed."""
    there = {"fast_tsp", "elkai", "hgs", "pyvrp", "cpsat"}
    for kind in there:
        monkeypatch.setattr(type(run.solver(kind)), "available", lambda self, k=kind: "1" if k in there else None)
    assert [run.default_solver(p, 50) for p in ("tsp", "cvrp", "atsp")] == ["fast_tsp", "hgs", "cpsat"]
    assert run.default_solver("atsp", 300) == "elkai"
    assert "pip install" not in run.describe_choice("descent", "tsp")  # asked for beside better ones
    there -= {"fast_tsp", "hgs", "cpsat"}
    assert [run.default_solver(p, 50) for p in ("tsp", "cvrp", "atsp")] == ["elkai", "pyvrp", "elkai"]
    there.remove("pyvrp")
    assert [("pip install" in run.describe_choice("descent", p)) for p in ("tsp", "cvrp")] == [False, True]
    there.clear()
    assert {run.default_solver(p, 50) for p in ("tsp", "cvrp", "atsp")} == {"ils"}
    assert "pip install" in run.describe_choice("ils", "tsp")


def mean_gap(shared: Path, file: str, reference: str, kind: str, count: int, **params: int) -> float:
    """Mean gap in percent of a solver to the published costs of the first `count` instances."""
    if run.solver(kind).available() is None:
        pytest.skip(f"{kind} is not installed")
    items = sets.read_pickle(shared / "data/sets" / file)
    known = sets.read_pickle(shared / "data/sets" / reference)
    assert isinstance(items, list)
    assert isinstance(known, sets.Solutions)
    cases = [Instance(i.problem, i.xy, demand=i.demand, capacity=i.capacity) for i in items[:count]]
    out = solve_all(cases, kind, params, jobs=2, fallback=())
    costs = [o.cost for o in out if isinstance(o, Answer)]
    assert len(costs) == count
    return float(gaps(costs, known.costs[:count]).mean())


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_fast_tsp_reaches_concorde(shared: Path, count: int) -> None:
    """On the published TSP50 set the mean gap to Concorde's optimum is below 0.01%, and never negative."""
    assert -1e-9 < mean_gap(shared, "tsp50_uniform.pkl", "concorde_tsp50_uniform.pkl", "fast_tsp", count) < 0.01


@pytest.mark.parametrize(("count", "iterations"), [(20, 300), pytest.param(200, 2000, marks=pytest.mark.slow)])
def test_hgs_reaches_the_published_hgs(shared: Path, count: int, iterations: int) -> None:
    """On the published CVRP50 set the mean gap to HGS with ten times the iterations is below 0.1%."""
    files = ("cvrp50_uniform.pkl", "hgs_cvrp50_uniform.pkl")
    assert mean_gap(shared, *files, "hgs", count, iterations=iterations) < 0.1


def test_nearest_neighbour_is_the_papers_row(shared: Path) -> None:
    """Over all 1000 clean ATSP20 instances: 30.481%, the paper's number to its last digit."""
    known = sets.read_pickle(shared / "data/sets/lkh_atsp20.pkl")
    assert isinstance(known, sets.Solutions)
    files = sorted((shared / "data/sets/atsp20_clean").iterdir())
    costs = []
    for path in files:
        matrix = tsplib.read(path).matrix
        assert matrix is not None
        d = np.array(matrix) / 1e6
        np.fill_diagonal(d, 0)
        costs.append(Instance("atsp", matrix=d).cost(nearest_tour(d)))
    assert round(float(gaps(costs, known.costs).mean()), 3) == 30.481


@pytest.mark.parametrize(
    ("file", "kind", "optimum", "percent"),
    [
        ("tsplib/kroA100.tsp", "fast_tsp", 21282, 0.0),
        ("tsplib/kroA100.tsp", "elkai", 21282, 0.1),
        ("tsplib/att48.tsp", "fast_tsp", 10628, 0.0),
        ("tsplib/ulysses22.tsp", "fast_tsp", 7013, 0.0),
        ("atsplib/ftv33.atsp", "cpsat", 1286, 0.0),
        ("atsplib/ftv33.atsp", "elkai", 1286, 0.1),
        ("cvrplib/X-n101-k25.vrp", "hgs", 27591, 1.0),
    ],
)
def test_benchmark_optima_under_their_own_rounding(
    shared: Path, file: str, kind: str, optimum: int, percent: float
) -> None:
    """EUC_2D, ATT, GEO and explicit instances reach the library's optimum, and no solver claims to beat it."""
    if run.solver(kind).available() is None:
        pytest.skip(f"{kind} is not installed")
    item = tsplib.read(shared / "data" / file)
    case = Instance(item.problem, item.xy, item.matrix, item.demand, item.capacity, item.rule)
    params = {"iterations": 300} if kind == "hgs" else None
    (answer,) = solve_all([case], kind, params, jobs=1, fallback=())
    assert isinstance(answer, Answer), answer.note
    assert optimum <= answer.cost <= optimum * (1 + percent / 100)
    assert answer.proved == (kind == "cpsat")
