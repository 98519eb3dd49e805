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
        ("lat,stop\n0,1\n2,3", 1, "columns 'lat, stop' are not x,y"),
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


@pytest.mark.parametrize(
    "text",
    [
        "6,96;0\n7,5;1,25\n",
        "x;y\n6,96;0\n7,5;1,25\n",
        "sep=;\nx;y\n6,96;0\n7,5;1,25\n",
        "6,96\t0\n7,5\t1,25\n",
        "6,96 0\n7,5   1,25\n",
        "x|y\n6.96|0\n7.5|1.25",
        '"6,96","0"\n"7,5","1,25"\n',
        "y;x;\n0;6,96;\n1,25;7,5;\n",
        "6.96, 0\n7.5, 1.25\n",
    ],
)
def test_a_file_has_one_separator_and_one_decimal_mark(text: str) -> None:
    """Decimal commas between semicolons, tabs, spaces or in quotes are decimal commas, not two columns."""
    item = csv.parse(text)
    assert item.problem == "tsp"
    np.testing.assert_array_equal(item.xy, [[6.96, 0], [7.5, 1.25]])


def test_decimal_commas_of_demands_and_of_the_capacity() -> None:
    """A line `# capacity: 12,5` is read like the numbers below it."""
    item = csv.parse("# capacity: 12,5\nx;y;demand\n0;0;0\n1,5;2;3,5\n")
    assert (item.problem, item.capacity) == ("cvrp", 12.5)
    np.testing.assert_array_equal(item.demand, [0, 3.5])


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("6,96,0,5\n7,5,1,25\n", ("6 | 96 | 0 | 5", "6.96 | 0.5")),
        ("x,y\n6,96,0,5\n7,5,1,25\n", ("4 values", "6.96 | 0.5")),
        ("52,517;13,388\n48,137;11,575\n", ("52.517", "52517")),
        ('"52,517","13,388"\n"48,137","11,575"\n', ("52.517", "52517")),
    ],
)
def test_a_table_with_two_readings_is_refused_with_both(text: str, readings: tuple[str, str]) -> None:
    """Nothing is guessed: the error has both readings, and a hint that decides between them."""
    with pytest.raises(DataError) as caught:
        csv.parse(text, at="a.csv")
    assert [reading in caught.value.message for reading in readings] == [True, True], caught.value.message
    assert caught.value.hint


def test_a_comment_decides_between_two_readings() -> None:
    """`# decimal: ,` and `# decimal: .` say which reading is meant; anything else there is an error."""
    text = "# decimal: {}\n52,517;13,388\n48,137;11,575\n"
    comma, point = (csv.parse(text.format(mark)).xy for mark in ",.")
    np.testing.assert_array_equal(comma, [[52.517, 13.388], [48.137, 11.575]])
    np.testing.assert_array_equal(point, [[52517, 13388], [48137, 11575]])
    with pytest.raises(DataError, match="no decimal mark"):
        csv.parse(text.format("/"))


def test_thousands_are_read_where_nothing_else_is_possible() -> None:
    """1.234,5 and 5.456.789 have one reading each; 1.234 alone has a decimal point, as ever."""
    np.testing.assert_array_equal(csv.parse("1.234,5;2\n5.456.789;3\n").xy, [[1234.5, 2], [5456789, 3]])
    np.testing.assert_array_equal(csv.parse("1.234;5.678\n2.345;6.789\n").xy, [[1.234, 5.678], [2.345, 6.789]])


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("1,5;2\n1.5;2\n", 2, "written in two ways"),
        ("x,y\n6,96;0\n", 2, "'96;0' is not a number"),
        ("1;2,\n3;4\n", 1, "'2,' is not a number"),
    ],
)
def test_mixed_marks_are_refused_with_their_line(text: str, at: int, message: str) -> None:
    """Two decimal marks or two separators in one file are an error that points at the line."""
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        csv.parse(text, at="a.csv")
    assert caught.value.at == f"a.csv:{at}"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_headers_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    """Länge and Breite are read in UTF-8, Latin-1 and UTF-16, with and without byte order mark, also by `sniff`."""
    from cnf_cli.formats.sniff import sniff

    for name in ("a.csv", "a.txt"):
        file = tmp_path / name
        file.write_bytes("Länge;Breite\n6,96;50,1\n7,5;51,25\n".encode(encoding))
        assert sniff(file) == "csv"
        np.testing.assert_array_equal(csv.read(file).xy, [[6.96, 50.1], [7.5, 51.25]])
    file.write_bytes("Straße;Größe\n1;2\n3;4\n".encode(encoding))
    with pytest.raises(DataError, match="columns 'Straße, Größe' are not x,y"):
        csv.read(file)


@pytest.mark.parametrize("header", ["lon,lat", "Longitude,Latitude", "LÄNGE,BREITE"])
def test_degrees_are_noted(header: str) -> None:
    """Columns named as degrees are read in their order, with a note that a plane isis costed; x and y have none."""
    item = csv.parse(f"{header}\n7.1,50.7\n6.9,50.9\n")
    np.testing.assert_array_equal(item.xy, [[7.1, 50.7], [6.9, 50.9]])
    assert "as if the map were a plane" in item.notes[0]
    turned = csv.parse("lat,lon\n50.7,7.1\n50.9,6.9\n")
    np.testing.assert_array_equal(turned.xy, item.xy)  # type: ignore[arg-type]
    assert csv.parse("x,y\n7.1,50.7\n6.9,50.9\n").notes == ()


def test_imports_of_tables_have_new_keys_and_others_keep_theirs(tmp_path: Path) -> None:
    """What an earlier version made of a table is no hit for today's reading; the key of a TSPLIB file is as it was."""
    from cnf_cli.stages import imported

    for name, tables in (("a.csv", 2), ("a.TXT", 2), ("a.tsp", None)):
        (tmp_path / name).write_text("1;2\n3;4\n")
        section = imported.task([tmp_path / name]).sections["import"]
        assert section.identity().get("tables") == tables


@pytest.mark.parametrize("text", ["0,\t\n", "# capacity: 9\n1,1,\t\n", "1,1,4\t"])
def test_a_line_of_two_readings_one_of_them_a_header_is_refused(text: str) -> None:
    """A separator at the end of the only line: an error with its line, found by the fuzzer as a bug."""
    with pytest.raises(DataError) as caught:
        csv.parse(text, at="a.csv")
    assert str(caught.value.at).startswith("a.csv:")
