"""Data sets: what is written is read back, equal data give equal bytes, nonsense is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import ARRAYS, Block, Dataset, load, save


def blocks() -> tuple[Block, Block]:
    rng = np.random.default_rng(1)
    vrp = Block(
        xy=rng.random((3, 5, 2)),
        demand=np.array([[0, 1, 2, 3, 4]] * 3),
        capacity=np.full(3, 9),
        names=("a", "", "ü-3"),
        cost=np.array([1.5, np.nan, 2.0]),
        tour=np.array([[0, 1, 2, 0, 3, 4], [-1] * 6, [0, 4, 3, 2, 1, -1]]),
        proved=np.array([True, False, False]),
        extra={"alpha": rng.random(3), "clean_xy": rng.random((3, 5, 2)).astype("f4"), "ids": np.ones((3, 5), "i8")},
    )
    large = Block(xy=rng.random((2, 9, 2)), demand=np.zeros((2, 9)), capacity=np.ones(2), rule="euc_2d")
    return vrp, large


def dataset() -> Dataset:
    return Dataset("cvrp", blocks(), solver="hgs", attrs={"seed": 7, "generator": "uniform", "scale": 0.5})


def same(a: Dataset, b: Dataset) -> bool:
    def equal(x: Any, y: Any) -> bool:
        return (x is None) == (y is None) and (
            x is None or (x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))
        )

    head = (a.problem, a.solver, a.attrs, len(a.blocks)) == (b.problem, b.solver, b.attrs, len(b.blocks))
    return head and all(
        all(equal(getattr(p, name), getattr(q, name)) for name in ARRAYS)
        and (p.names, p.rule, sorted(p.extra)) == (q.names, q.rule, sorted(q.extra))
        and all(equal(p.extra[key], q.extra[key]) for key in p.extra)
        for p, q in zip(a.blocks, b.blocks, strict=True)
    )


def test_round_trip(tmp_path: Path) -> None:
    """Every array, name, rule and attribute of a saved data set comes back."""
    save(tmp_path / "a.h5", dataset())
    found = load(tmp_path / "a.h5")
    assert same(found, dataset())
    assert len(found) == 5
    assert [block.tour_of(i) for block, i in found.instances()] == [
        [0, 1, 2, 0, 3, 4],
        None,
        [0, 4, 3, 2, 1],
        None,
        None,
    ]


def test_equal_data_give_equal_bytes(tmp_path: Path) -> None:
    """Two writes of the same data are the same file, whatever the order of keys and the time."""
    other = dataset()
    object.__setattr__(other, "attrs", dict(reversed(other.attrs.items())))
    digests = set()
    for name, data in (("a.h5", dataset()), ("b.h5", other)):
        save(tmp_path / name, data)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_constant_data_still_read_back(tmp_path: Path) -> None:
    """Megabytes of zeros compress a lot, but never so much that the reader's limit refuses our own file."""
    data = Dataset("tsp", (Block(xy=np.zeros((20_000, 50, 2)), cost=np.zeros(20_000), rule="euclid"),))
    save(tmp_path / "a.h5", data)
    assert len(load(tmp_path / "a.h5")) == 20_000


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """Nothing is lost when a data set cannot be written, and no temporary file stays."""
    target = tmp_path / "a.h5"
    target.write_bytes(b"old")
    bad = Dataset("tsp", (Block(xy=np.zeros((1, 2, 2))),), attrs={"notes": "x" * 70_000})
    with pytest.raises(DataError, match="attributes"):
        save(target, bad)
    broken = Dataset("tsp", (Block(xy=np.zeros((1, 2, 2)), extra={"a": np.zeros((1, 0))}),))
    with pytest.raises(DataError, match="empty"):
        save(target, broken)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "coordinates"),
        ({"xy": np.zeros((1, 1, 2))}, "at least 2 nodes"),
        ({"xy": np.zeros((1, 3, 3))}, "shape"),
        ({"xy": np.full((1, 3, 2), np.nan)}, "not finite"),
        ({"xy": np.zeros((1, 3, 2)), "rule": "manhattan"}, "rule"),
        ({"xy": np.zeros((1, 3, 2)), "rule": "explicit"}, "rule"),
        ({"xy": np.zeros((1, 3, 2)), "names": ("a", "b")}, "names"),
        ({"xy": np.zeros((1, 3, 2)), "demand": np.zeros((1, 3))}, "together"),
        ({"xy": np.zeros((1, 3, 2)), "demand": np.array([[0, 1, 9]]), "capacity": np.array([8])}, "exceeds"),
        ({"xy": np.zeros((1, 3, 2)), "demand": np.array([[1, 1, 1]]), "capacity": np.array([8])}, "depot"),
        ({"xy": np.zeros((1, 3, 2)), "demand": np.array([[0, -1, 1]]), "capacity": np.array([8])}, "negative"),
        ({"xy": np.zeros((1, 3, 2)), "demand": np.zeros((1, 3)), "capacity": np.array([0])}, "not positive"),
        ({"xy": np.zeros((1, 3, 2)), "tour": np.array([[0, 1, 3]])}, "outside"),
        ({"xy": np.zeros((1, 3, 2)), "tour": np.array([[0, -1, 2]])}, "gap"),
        ({"xy": np.zeros((1, 3, 2)), "cost": np.array([np.inf])}, "infinite"),
        ({"xy": np.zeros((1, 3, 2)), "extra": {"a b": np.zeros(1)}}, "names are"),
        ({"xy": np.zeros((1, 3, 2)), "extra": {"a": np.zeros(2)}}, "one row"),
        ({"xy": np.zeros((1, 3, 2)), "extra": {"a": np.array(["x"])}}, "only floats"),
    ],
)
def test_impossible_blocks_are_refused(fields: dict[str, Any], message: str) -> None:
    """A block that exists is usable: sizes agree, numbers are finite, every demand fits."""
    with pytest.raises(DataError, match=message):
        Block(**fields)


def test_a_problem_has_what_it_needs() -> None:
    """A CVRP without demands and an ATSP without a matrix are refused."""
    block = Block(xy=np.zeros((1, 3, 2)))
    for problem in ("cvrp", "atsp"):
        with pytest.raises(DataError, match=f"{problem} has no"):
            Dataset(problem, (block,))
    with pytest.raises(DataError, match="at least one"):
        Dataset("tsp", ())


def test_other_files_are_named(tmp_path: Path) -> None:
    """A text, another tool's HDF5 file and a newer format each get their own message."""
    import h5py

    (tmp_path / "a.h5").write_text("hello")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.zeros(3)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.attrs["cnf"] = np.bytes_(b'{"format":2}')
    for name, message in (
        ("a.h5", "not an HDF5"),
        ("b.h5", "not a cnf data set"),
        ("c.h5", "format"),
        ("d.h5", "cannot read"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            load(tmp_path / name)
        assert caught.value.at == str(tmp_path / name)
