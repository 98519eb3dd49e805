"""Searches: never worse, repeatable, the same in C++ and in plain Python, and near the optimum where it is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cnf_cli.search import ils
from cnf_cli.search.draws import Draws
from cnf_cli.search.plain_tour import Tour
from cnf_cli.solvers.base import Instance
from cnf_cli.solvers.exact import solve_small
from cnf_cli.solvers.nearest import Solver as Nearest

native = pytest.mark.skipif(not ils.native(), reason="the search kernels are not built here")


def instance(kind: str, n: int, seed: int, whole: bool = False) -> Instance:
    """A random instance; `whole` has many equal distances and demands that fill vehicles exactly."""
    rng = np.random.default_rng([n, seed, whole])
    if kind == "atsp":
        return Instance("atsp", matrix=rng.integers(1, 9, (n, n)) * 1.0 if whole else rng.random((n, n)))
    xy = rng.integers(0, 5, (n, 2)) * 1.0 if whole else rng.random((n, 2))
    if kind == "tsp":
        return Instance("tsp", xy)
    demand = np.r_[0.0, rng.integers(1, 6, n - 1)] if whole else np.r_[0.0, rng.random(n - 1)]
    return Instance("cvrp", xy, demand=demand, capacity=10.0 if whole else 3.0)


def start(one: Instance) -> tuple[int, ...]:
    return tuple(Nearest().solve(one, None).tour)  # type: ignore[arg-type]


@native
@pytest.mark.parametrize("kind", ["tsp", "atsp", "cvrp"])
@pytest.mark.parametrize("whole", [False, True])
def test_kernels_repeat_the_plain_version(monkeypatch: pytest.MonkeyPatch, kind: str, whole: bool) -> None:
    """The same rounds and seed give the same tour, node by node, in C++ and step by step in Python."""
    for n in (4, 5, 7, 9, 14, 30):
        one = instance(kind, n, 1, whole)
        fast = ils.improve(one, start(one), rounds=70, seed=n)
        with monkeypatch.context() as patch:
            patch.setattr(ils, "_search", None)
            assert ils.improve(one, start(one), rounds=70, seed=n) == fast


@pytest.mark.parametrize("kind", ["tsp", "atsp", "cvrp"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 11])
def test_never_worse_and_feasible(kind: str, n: int) -> None:
    """Whatever the size, the judge finds the answer feasible and no dearer than the start; equal points do no harm."""
    for whole in (False, True):
        if kind == "cvrp" and n == 1:
            continue
        one = instance(kind, n, 2, whole)
        tour, _ = ils.improve(one, start(one), rounds=40, seed=3)
        assert one.cost(tour) <= one.cost(start(one))


@native
@pytest.mark.parametrize("kind", ["tsp", "atsp", "cvrp"])
def test_finds_the_optimum_of_small_instances(kind: str) -> None:
    """On instances of ten nodes, a thousand rounds end at the proved optimum nearly always."""
    met = []
    for seed in range(20):
        one = instance(kind, 10, seed)
        best = one.cost(solve_small(one).tour)
        cost = one.cost(ils.improve(one, start(one), rounds=1000, seed=seed)[0])
        assert cost >= best * (1 - 1e-9)
        met.append(cost <= best * (1 + 1e-9))
    assert np.mean(met) >= 0.9


@native
def test_seconds_are_a_budget_too() -> None:
    """A budget of time makes some rounds, and a stop in rounds ends it early."""
    one = instance("tsp", 60, 1)
    assert ils.improve(one, start(one), seconds=0.02)[1] > 0
    assert ils.improve(one, start(one), rounds=5, seconds=60.0)[1] == 5
    with pytest.raises(ValueError, match="budget"):
        ils.improve(one, start(one))


@native
def test_better_than_descent() -> None:
    """On 100 random nodes the search leaves a local optimum of 2-opt and Or-opt well behind, for every problem."""
    for kind in ("tsp", "atsp", "cvrp"):
        gains = []
        for seed in range(4):
            one = instance(kind, 100, seed)
            costs = [one.cost(ils.improve(one, start(one), rounds=r, seed=1)[0]) for r in (1, 5000)]
            gains.append(costs[0] / costs[1] - 1)
        assert min(gains) > 0.005, kind


def test_tour_moves_are_what_they_say() -> None:
    """Reversing, carrying and exchanging paths change the edges they should, and no others."""

    def edges(tour: Tour) -> set[tuple[int, int]]:
        nodes = tour.order
        return {(min(e), max(e)) for e in pairwise([*nodes, nodes[0]])}

    draws = Draws(5)
    for _ in range(300):
        n = 6 + draws.below(9)
        tour, before = Tour(range(n)), edges(Tour(range(n)))
        a, length = draws.below(n), 1 + draws.below(3)
        left = (a + length + draws.below(n - length - 1)) % n
        tour.carry(a, length, left, bool(draws.below(2)))
        assert sorted(tour.order) == list(range(n))
        gone = {
            tuple(sorted(e))
            for e in (((a - 1) % n, a), ((a + length - 1) % n, (a + length) % n), (left, (left + 1) % n))
        }
        assert before - edges(tour) <= gone
        turned = Tour(range(n))
        b = (a + 1 + draws.below(n - 2)) % n
        turned.reverse(a, b)
        assert edges(turned) - before <= {tuple(sorted(e)) for e in (((a - 1) % n, b), (a, (b + 1) % n))}
