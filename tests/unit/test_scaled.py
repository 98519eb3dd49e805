"""One scaling: what a policy is shown, what tours cost in the user's units, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cnf_cli import plugins
from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Block
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.validate import check_tour


def problem_of(kind: str) -> BaseProblem:
    module = plugins.load("problems", kind)
    found: BaseProblem = module.Problem(module.Params())
    return found


def maps() -> list[Block]:
    """Five instances of two sizes and three rules, far from the unit square and in it."""
    rng = np.random.default_rng(3)
    return [
        Block(xy=rng.random((2, 6, 2)), names=("a", "b")),
        Block(xy=rng.uniform(-300, 800, (2, 9, 2)), rule="euc_2d", names=("c", "d")),
        Block(xy=rng.uniform(30, 60, (1, 6, 2)), rule="geo", names=("e",)),
    ]


def test_every_block_is_shown_in_the_unit_square_and_comes_back() -> None:
    """All blocks in order; what is shown fits the square, and goes back to the user's units to float32's precision."""
    scaled = problem_of("tsp").scaled(maps())
    assert [one.block.names for one in scaled] == [("a", "b"), ("c", "d"), ("e",)]
    assert [one.plain for one in scaled] == [True, False, False]
    for one in scaled:
        shown, rows = one.instances.xy, np.arange(len(one))
        assert shown is not None
        assert 0 <= float(shown.min()) <= float(shown.max()) <= 1
        nudged = one.instances.with_(xy=shown + 1e-3)
        back = one.back(nudged, rows)
        assert back.xy is not None
        assert one.block.xy is not None
        there = one.block.xy + 1e-3 * one.width
        np.testing.assert_allclose(back.xy, there, atol=1e-6 * float(one.width.max()))
        assert (back.rule, back.names, back.cost) == (one.block.rule, one.block.names, None)


@pytest.mark.parametrize("kind", ["tsp", "cvrp", "atsp"])
def test_what_did_not_change_comes_back_to_the_bit(kind: str) -> None:
    """Places, demands and costs that nobody changed are the user's very numbers, in any order of rows."""
    rng = np.random.default_rng(4)
    xy = rng.uniform(1e5, 1e6, (3, 7, 2))
    demand = np.concatenate([np.zeros((3, 1)), rng.uniform(0.1, 7, (3, 6))], 1)
    matrix = rng.uniform(0, 5000, (3, 7, 7))
    given = {
        "tsp": Block(xy=xy, rule="ceil_2d"),
        "cvrp": Block(xy=xy, demand=demand, capacity=np.array([11.3, 20.0, 17.1])),
        "atsp": Block(matrix=matrix, rule="explicit"),
    }[kind]
    (one,) = problem_of(kind).scaled([given])
    rows = np.array([2, 0, 2])
    back = one.back(one.instances[torch.from_numpy(rows)], rows)
    for name in ("xy", "demand", "capacity", "matrix"):
        was, now = getattr(given, name), getattr(back, name)
        assert (was is None) == (now is None)
        assert was is None or np.array_equal(now, was[rows])


def test_the_price_is_the_instances_own() -> None:
    """Tours of several instances at once cost what the independent judge says of each, by every rule."""
    rng, tsp = np.random.default_rng(5), problem_of("tsp")
    tours = torch.stack([torch.stack([torch.randperm(6) for _ in range(4)]) for _ in range(3)])
    drawn = np.abs(rng.normal(50, 20, (3, 6, 6))).round()
    for rule in ("euclid", "euc_2d", "ceil_2d", "att", "geo", "explicit"):
        matrix = drawn + drawn.transpose(0, 2, 1) if rule == "explicit" else None
        block = Block(xy=rng.uniform(-80, 80, (3, 6, 2)), matrix=matrix, rule=rule)
        (one,) = tsp.scaled([block])
        cost = one.cost(torch.tensor([2, 0, 1]), tours)
        for k, i in enumerate((2, 0, 1)):
            where: dict[str, Any] = {"xy": block.xy[i]} if matrix is None else {"matrix": matrix[i]}  # type: ignore[index]
            real = [check_tour(tour, rule=rule, **where) for tour in tours[k].tolist()]
            assert cost[k].tolist() == pytest.approx(real, rel=1e-12)


@pytest.mark.parametrize("how", ["auto", "fit", "published"])
def test_what_one_instance_is_shown_as_does_not_depend_on_the_others(how: Any) -> None:
    """An instance alone and in a block with others is shown on one and the same scale."""
    rng = np.random.default_rng(6)
    for rule in ("euclid", "euc_2d"):
        xy = np.concatenate([rng.random((1, 5, 2)), rng.uniform(0, 900, (1, 5, 2)), rng.uniform(-5, 5, (1, 5, 2))])
        together = problem_of("tsp").scaled([Block(xy=xy, rule=rule)], how)[0].instances.xy
        alone = [problem_of("tsp").scaled([Block(xy=xy[i : i + 1], rule=rule)], how)[0].instances.xy for i in range(3)]
        assert together is not None
        assert torch.equal(together, torch.cat([one for one in alone if one is not None]))
    matrix = np.concatenate([rng.random((1, 5, 5)), rng.uniform(0, 900, (1, 5, 5))])
    matrix[0].flat[::6] = 9999  # TSPLIB's diagonal is no cost
    together = problem_of("atsp").scaled([Block(matrix=matrix, rule="explicit")])[0].instances.matrix
    assert together is not None
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_array_equal(together[0].numpy()[off], matrix[0].astype("f4")[off])
    assert float(together[1].max()) == 1.0


def test_what_cannot_be_read_is_named() -> None:
    """The error about an instance says which one it is."""
    matrix = np.ones((1, 4, 4)) - np.eye(4)
    with pytest.raises(DataError, match=r"^bays4: tsp needs coordinates"):
        problem_of("tsp").scaled([*maps(), Block(matrix=matrix, rule="explicit", names=("bays4",))])
