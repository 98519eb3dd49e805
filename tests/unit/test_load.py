"""One tolerance for what a vehicle carries: whole units are exact, the rest has a millionth of the capacity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.engine import native
from cnf_cli.engine.base import Engine, World
from cnf_cli.engine.native import NativeEngine
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.formats.dataset import Block
from cnf_cli.problems.base import TOLERANCE
from cnf_cli.problems.validate import InvalidTour, check_tour
from cnf_cli.solvers.base import Instance
from cnf_cli.solvers.run import solve_one
from tests.helpers import cnf_json
from tests.unit.native_kit import random_case

ENGINES: list[Engine] = [TorchEngine(), *([NativeEngine()] if native.available() else [])]
BOTH = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


def case(demand: list[float], capacity: float) -> Block:
    """One instance with these customers around a depot."""
    angle = np.arange(len(demand)) * (2 * np.pi / len(demand))
    xy = np.concatenate([[[0.5, 0.5]], 0.5 + 0.4 * np.stack([np.cos(angle), np.sin(angle)], 1)])
    return Block(xy=xy[None], demand=np.array([[0.0, *demand]]), capacity=np.array([capacity]))


def routes(block: Block, engine: Engine, draws: int = 60) -> list[list[list[int]]]:
    """Greedy and sampled tours of random tables, each as its routes; every one was judged in the units of the block."""
    module = plugins.load("problems", "cvrp")
    problem = module.Problem(module.Params(n=block.nodes - 1))
    inst = problem.from_block(block)
    out = []
    for draw in range(draws):
        tables, _ = random_case(1, block.nodes, d=32, depot=True, seed=draw)
        tours: Tensor = engine.rollout(tables, problem.world(inst), torch.tensor([draw]) if draw else None)
        for tour in tours[0].tolist():
            check_tour(tour, xy=block.xy[0], demand=block.demand[0], capacity=float(block.capacity[0]))  # type: ignore[index]
            problem.check(inst, 0, tour)
            text = " ".join(map(str, tour)).split(" 0")
            out.append([[int(v) for v in part.split() if v != "0"] for part in text if part.strip("0 ")])
    return out


@BOTH
@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9], ids=["3", "3e3", "3e6", "3e9"])
def test_no_engine_overloads_a_vehicle_by_one_unit(engine: Engine, scale: int) -> None:
    """Three customers of a third of the capacity and one unit never share a route; three of exactly a third do."""
    over = routes(case([scale + 1, scale, scale, scale + 1, scale], 3 * scale), engine)
    assert max(len(route) for tour in over for route in tour) == 3
    for tour in over:
        assert all(sum(node in (1, 4) for node in route) == 0 for route in tour if len(route) == 3)
    exact = routes(case([scale] * 5, 3 * scale), engine)
    assert max(len(route) for tour in exact for route in tour) == 3


@BOTH
def test_a_million_units_are_counted_one_by_one(engine: Engine) -> None:
    """Demands of 333,335 of 1,000,000 go two by two; 333,333 and 333,334 fit three by three where that is exact."""
    assert max(len(r) for tour in routes(case([333_335] * 7, 1_000_000), engine) for r in tour) == 2
    assert max(len(r) for tour in routes(case([333_333, 333_333, 333_334] * 2, 1_000_000), engine) for r in tour) == 3


@BOTH
@pytest.mark.parametrize(("excess", "together"), [(-1e-9, True), (0.4e-6, True), (2e-6, False), (5e-6, False)])
def test_the_slack_of_shares_is_a_millionth(engine: Engine, excess: float, together: bool) -> None:
    """Two halves that are no whole units share a route below a millionth too much and never above: no slack besides."""
    found = routes(case([0.5, 0.5 + excess, 0.5, 0.5 + excess], 1.0), engine)
    pairs = {frozenset(route) for tour in found for route in tour if len(route) == 2}
    assert (frozenset({2, 4}) in pairs) == (together if excess <= 0 else 2 * excess <= TOLERANCE / 2)
    assert (frozenset({1, 2}) in pairs) == together


@BOTH
def test_a_tour_over_the_limit_has_no_probability(engine: Engine) -> None:
    """`score` closes what does not fit by the same limit: one unit of a million too much gives log p = -inf."""
    tables, _ = random_case(1, 5, d=32, depot=True)
    starts, weight = torch.tensor([1]), torch.ones(1, 1)
    tour = torch.tensor([[[0, 1, 2, 3, 0, 4, 0]]])
    for last, fits in ((333_334, True), (333_335, False)):
        share = torch.tensor([[0, 333_333, 333_333, last, 5]], dtype=torch.float64) / 1e6
        for demand in (share, share.float()):
            world = World(starts, demand, torch.tensor([1e6]))
            assert bool(engine.score(tables, world, tour, weight)[1].isfinite().all()) == fits


def test_the_judge_allows_no_unit_too_many() -> None:
    """One unit over is refused at every size, and so is a share of two millionths; less than one millionth passes."""
    place = np.random.default_rng(0).random((4, 2))
    for full in (3.0, 100.0, 1e6, 3e9):
        third = np.array([0.0, full // 3, full // 3, full - 2 * (full // 3)])
        check_tour([0, 1, 2, 3], xy=place, demand=third, capacity=full)
        with pytest.raises(InvalidTour, match="more than the capacity"):
            check_tour([0, 1, 2, 3], xy=place, demand=third + np.eye(4)[1], capacity=full)
    for excess, fine in ((0.9e-6, True), (2e-6, False), (1e-5, False), (1e-2, False)):
        demand = np.array([0, 0.25, 0.25, 0.5 + excess])
        if fine:
            check_tour([0, 1, 2, 3], xy=place, demand=demand)
        else:
            with pytest.raises(InvalidTour, match="more than the capacity"):
                check_tour([0, 1, 2, 3], xy=place, demand=demand)


@pytest.mark.parametrize("kind", ["nearest", "descent"])
def test_own_solvers_count_whole_units_exactly(kind: str) -> None:
    """The built-in solvers, and the exact one for small instances, answer 333,335 of 1,000,000 with pairs."""
    for customers in (5, 14):
        block = case([333_335] * customers, 1_000_000)
        instance = Instance("cvrp", xy=block.xy[0], demand=block.demand[0], capacity=1e6)  # type: ignore[index]
        tour = list(solve_one(instance, kind, {"seconds": 0.2} if kind == "descent" else {}).tour)
        assert tour.count(0) >= -(-customers // 2)


def test_solve_and_evaluate_a_million_units(tmp_path: Path) -> None:
    """A file with capacity 1,000,000 and demands of 333,335 is solved and evaluated; its tours carry two customers."""
    block = case([333_335] * 9, 1_000_000)
    assert block.xy is not None
    rows = "\n".join(f"{x!r},{y!r},{q:.0f}" for (x, y), q in zip(block.xy[0].tolist(), block.demand[0], strict=True))  # type: ignore[index]
    file = tmp_path / "stops.csv"
    file.write_text(f"# capacity: 1000000\nx,y,demand\n{rows}\n")
    (solved,) = cnf_json("solve", str(file), store=tmp_path)["rows"]
    assert solved["cost"] > 0
    done = cnf_json("evaluate", "--data", str(file), "--with", "zoo/cvrp20", "--solver", "nearest", store=tmp_path)
    assert done["id"]
