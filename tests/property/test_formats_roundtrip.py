"""What is written is read back, for any instance."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cnf_cli.formats import csv, export, tours, tsplib
from cnf_cli.formats.dataset import ARRAYS, load, save
from cnf_cli.formats.item import Item, collect, items_of

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@st.composite
def items(draw: st.DrawFn, rules: tuple[str, ...] = ("euc_2d", "ceil_2d", "att", "geo", "explicit")) -> Item:
    problem = draw(st.sampled_from(["tsp", "cvrp", "atsp"] if "explicit" in rules else ["tsp", "cvrp"]))
    rule = "explicit" if problem == "atsp" else draw(st.sampled_from(rules))
    n = draw(st.integers(2, 9))
    xy = draw(hnp.arrays("f8", (n, 2), elements=NUMBERS))
    matrix = None
    if rule == "explicit":
        matrix = draw(hnp.arrays("f8", (n, n), elements=st.floats(0, 1e9)))
        matrix = matrix if problem == "atsp" else np.maximum(matrix, matrix.T)
        np.fill_diagonal(matrix, 0)
    demand = capacity = ids = None
    if problem == "cvrp":
        capacity = draw(st.floats(1, 1e6))
        demand = np.r_[0.0, draw(hnp.arrays("f8", (n - 1,), elements=st.floats(0, 1)))] * capacity
        depot = draw(st.integers(1, n))
        ids = np.array([depot, *(i for i in range(1, n + 1) if i != depot)]) if depot != 1 else None
    return Item(problem, rule, "a", xy=xy, matrix=matrix, demand=demand, capacity=capacity, ids=ids)


def assert_same(a: Item, b: Item) -> None:
    assert (a.problem, a.rule, a.name, a.capacity) == (b.problem, b.rule, b.name, b.capacity)
    for x, y in ((a.xy, b.xy), (a.matrix, b.matrix), (a.demand, b.demand), (a.numbers, b.numbers)):
        np.testing.assert_array_equal(x, y)


@given(items())
def test_tsplib_text_reads_back_exactly(item: Item) -> None:
    """Any instance with a TSPLIB rule survives writing and reading to the last bit, depot and numbers included."""
    assert_same(item, tsplib.parse(export.render(item), name="a"))


@given(items(rules=("euclid",)))
def test_csv_reads_back_exactly(item: Item) -> None:
    """Any plain instance survives CSV to the last bit; a CSV's depot is its first line."""
    with tempfile.TemporaryDirectory() as folder:
        csv.write(Path(folder) / "a.csv", item)
        again = csv.read(Path(folder) / "a.csv")
    np.testing.assert_array_equal(item.xy, again.xy)
    np.testing.assert_array_equal(item.demand, again.demand)


@settings(deadline=None)
@given(st.lists(items(), min_size=1, max_size=6))
def test_data_sets_read_back_exactly(many: list[Item]) -> None:
    """Instances of mixed sizes and rules become blocks, survive the file, and come apart again; bytes repeat."""
    same = [item for item in many if item.problem == many[0].problem]
    found = collect(same)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "a.h5", found)
        again = load(Path(folder) / "a.h5")
        save(Path(folder) / "b.h5", again)
        assert (Path(folder) / "a.h5").read_bytes() == (Path(folder) / "b.h5").read_bytes()
    for p, q in zip(found.blocks, again.blocks, strict=True):
        assert all(np.array_equal(getattr(p, a), getattr(q, a)) for a in ARRAYS if getattr(p, a) is not None)
    assert len(again) == len(same)
    key = [(item.nodes, item.rule) for item in items_of(again)]
    assert key == sorted((item.nodes, item.rule) for item in same)


@given(items(), st.randoms(use_true_random=False))
def test_tours_read_back_exactly(item: Item, random: object) -> None:
    """Any feasible tour survives its file, whatever numbers the instance file uses."""
    nodes = list(range(item.nodes)) if item.demand is None else list(range(1, item.nodes))
    random.shuffle(nodes)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        if item.demand is None:
            tours.write_tour(Path(folder) / "a.tour", "a", nodes, item.numbers)
            again = tours.read_reference(Path(folder) / "a.tour", item)
            assert list(again.tour) == nodes
        else:
            walk = [v for node in nodes for v in (0, node)]
            tours.write_sol(Path(folder) / "a.sol", walk, item.re_cost(walk), item.numbers)
            again = tours.read_reference(Path(folder) / "a.sol", item)
            assert list(again.tour) == walk
    assert again.cost == item.re_cost(again.tour)
