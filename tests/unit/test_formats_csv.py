"""CSV of coordinates: with or without header, depot first, errors with their line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import DataError
from cnf_cli.formats import csv


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n2,3\n",
        "x,y\n0,1\n2,3\n",
        "y,x\n1,0\n3,2\n",
        "# a comment\n\n X ; Y \r\n0;1\r\n2;3\r\n",
        "0\t1\n2\t3",
        '"x","y"\n0,1\n2,3',
    ],
)
def test_two_columns_are_a_tsp(text: str) -> None:
    """Header, column order, separator and comments do not change the coordinates."""
    item = csv.parse(text)
    assert (item.problem, item.rule) == ("tsp", "euclid")
    np.testing.assert_array_equal(item.xy, [[0, 1], [2, 3]])


def test_three_columns_are_a_cvrp_with_the_depot_first() -> None:
    """The capacity comes from the argument or a comment line, the argument wins."""
    text = "# capacity: 50\nx,y,demand\n0,0,0\n1,1,7\n"
    assert csv.parse(text).capacity == 50
    item = csv.parse(text, capacity=9)
    assert (item.problem, item.capacity) == ("cvrp", 9)
    np.testing.assert_array_equal(item.demand, [0, 7])


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("0,1\n2,x\n", 2, "'x' is not a number"),
        ("0,1\n2,nan\n", 2, "'nan' is not a number"),
        ("0,1\n2,1e999\n", 2, "not a number"),
        ("0,1\n2\n", 2, "1 values where 2"),
        ("0,1\n", 1, "at least 2"),
        ("", 1, "at least 2"),
        ("lat,lon\n0,1\n2,3", 1, "are not x,y"),
        ("1\n2\n", 1, "are not x,y"),
        ("0,0,0\n1,1,3\n", 1, "capacity is not given"),
        ("# capacity: 5\n0,0,0\n1,1,6\n", 3, "exceeds the capacity 5"),
        ("# capacity: 5\n0,0,1\n1,1,3\n", 2, "depot"),
        ("# capacity: 5\n0,0,0\n1,1,-3\n", 3, "negative"),
        ("# capacity: 0\n0,0,0\n1,1,3\n", 1, "not positive"),
    ],
)
def test_bad_tables_are_refused_with_their_line(text: str, at: int, message: str) -> None:
    """Every broken table is a DataError that points at its line."""
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        csv.parse(text, at="a.csv")
    assert caught.value.at == f"a.csv:{at}"


def test_a_table_of_the_wrong_problem_is_refused() -> None:
    """A user who asked for a CVRP does not silently get a TSP."""
    with pytest.raises(DataError, match="holds a tsp"):
        csv.parse("0,1\n2,3\n", problem="cvrp")


def test_written_tables_read_back_exactly(tmp_path: Path) -> None:
    """Coordinates, demands and capacity survive to the last bit."""
    item = csv.parse("# capacity: 2.5\n0.1,0.2,0\n0.30000000000000004,1e-17,2.5\n")
    csv.write(tmp_path / "a.csv", item)
    again = csv.read(tmp_path / "a.csv")
    np.testing.assert_array_equal(again.xy, item.xy)
    np.testing.assert_array_equal(again.demand, item.demand)
    assert again.capacity == item.capacity
