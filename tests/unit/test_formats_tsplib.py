"""TSPLIB and VRPLIB: every layout reads the same, every error names its line, tours come back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.errors import DataError
from cnf_cli.formats import export, tours, tsplib

SQUARE = """NAME : square
TYPE : TSP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
NODE_COORD_SECTION
1 0 0
2 0 10
3 10 10
4 10 0
EOF
"""
VAN = """NAME : van
TYPE : CVRP
DIMENSION : 4
EDGE_WEIGHT_TYPE : EUC_2D
CAPACITY : 10
NODE_COORD_SECTION
1 0 10
2 0 0
3 3 4
4 6 8
DEMAND_SECTION
1 5
2 0
3 10
4 4
DEPOT_SECTION
 2
 -1
EOF
"""
WEIGHTS = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]], dtype=float)


def explicit(layout: str, numbers: list[float], kind: str = "TSP", per_line: int = 4) -> str:
    words = [f"{v:g}" for v in numbers]
    rows = [" ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    head = (
        f"TYPE: {kind}\nDIMENSION: 4\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: {layout}\nEDGE_WEIGHT_SECTION\n"
    )
    return head + "\n".join(rows) + "\n"


def listed(layout: str) -> list[float]:
    """The entries of WEIGHTS, plus 9 on the diagonal, by the letter of TSPLIB's definition of `layout`."""
    full = WEIGHTS + 9 * np.eye(4)
    if layout == "FULL_MATRIX":
        return list(full.reshape(-1))
    upper, diagonal, by_row = layout.startswith("UPPER"), "DIAG" in layout, layout.endswith("ROW")
    out = []
    for a in range(4):
        for b in range(4):
            i, j = (a, b) if by_row else (b, a)
            inside = j > i if upper else j < i
            if inside or (diagonal and i == j):
                out.append(full[i, j])
    return out


@pytest.mark.parametrize("layout", tsplib.FORMATS)
@pytest.mark.parametrize("per_line", [1, 3, 100])
def test_every_matrix_layout_gives_the_same_matrix(layout: str, per_line: int) -> None:
    """All nine layouts, wrapped anywhere, read as one matrix with a zero diagonal."""
    item = tsplib.parse(explicit(layout, listed(layout), per_line=per_line))
    np.testing.assert_array_equal(item.matrix, WEIGHTS)
    assert (item.problem, item.rule) == ("tsp", "explicit")


def test_odd_spacing_line_ends_and_missing_eof_do_not_matter() -> None:
    """CRLF, tabs, blank lines, no space at the colon, wrapped rows and no EOF change nothing."""
    odd = SQUARE.replace(" : ", ":").replace("1 0 0\n2 0 10", "\t1   0\n\n 0 2 0\t10 ").replace("EOF\n", "")
    for text in (odd, odd.replace("\n", "\r\n"), odd.replace("\n", "\r")):
        np.testing.assert_array_equal(tsplib.parse(text).xy, tsplib.parse(SQUARE).xy)


def test_what_follows_eof_is_not_read() -> None:
    """Text after EOF never reaches the reader."""
    assert tsplib.parse(SQUARE + "-1\nEOF\nrubbish").nodes == 4


def test_atsp_diagonal_of_infinity_is_zero() -> None:
    """The huge diagonal of ATSP files becomes 0, other weights stay, both directions apart."""
    matrix = np.arange(16.0).reshape(4, 4)
    np.fill_diagonal(matrix, 9999999)
    item = tsplib.parse(explicit("FULL_MATRIX", list(matrix.reshape(-1)), kind="ATSP"))
    assert item.problem == "atsp"
    assert np.diag(item.matrix).sum() == 0
    assert item.matrix[1, 2] == 6
    assert item.matrix[2, 1] == 9


def test_display_coordinates_come_with_an_explicit_matrix() -> None:
    """DISPLAY_DATA_SECTION gives coordinates to draw, the matrix still gives the costs."""
    text = explicit("UPPER_ROW", listed("UPPER_ROW")) + "DISPLAY_DATA_SECTION\n1 0 0\n2 0 1\n3 1 1\n4 1 0\nEOF\n"
    item = tsplib.parse(text)
    assert item.xy is not None
    assert item.re_cost([0, 1, 2, 3]) == 1 + 4 + 6 + 3


def test_the_depot_moves_to_node_0_and_keeps_its_number() -> None:
    """Depot 2 becomes node 0; demands, coordinates and numbers move with it; tours use the file's numbers."""
    item = tsplib.parse(VAN, name="van")
    np.testing.assert_array_equal(item.numbers, [2, 1, 3, 4])
    np.testing.assert_array_equal(item.demand, [0, 5, 10, 4])
    np.testing.assert_array_equal(item.xy[0], [0, 0])
    assert item.capacity == 10
    walk, cost = tours.parse_sol("Route #1: 0 3\nRoute #2: 2\nCost 38\n", item)
    assert walk == [0, 1, 3, 0, 2]
    assert item.re_cost(walk) == 10 + 6 + 10 + 5 + 5 == 36
    assert cost == 38


def test_fixed_edges_are_noted() -> None:
    """A file with fixed edges is read and says that they were ignored."""
    item = tsplib.parse(SQUARE.replace("NODE_COORD", "FIXED_EDGES_SECTION\n1 3\n-1\nNODE_COORD"))
    assert "FIXED_EDGES_SECTION ignored (1 edges" in item.notes[0]


BAD = [
    (SQUARE.replace("DIMENSION : 4", "DIMENSION : 1000000000"), 3, "outside 2.."),
    (SQUARE.replace("DIMENSION : 4", "DIMENSION : 1e9"), 3, "whole number"),
    (SQUARE.replace("DIMENSION : 4", "DIMENSION : 1"), 3, "outside 2.."),
    (SQUARE.replace("DIMENSION : 4", "DIMENSION : 5"), 5, "needs 15"),
    (SQUARE.replace("DIMENSION : 4\n", ""), 1, "DIMENSION is missing"),
    (SQUARE.replace("DIMENSION", "DIMENSON"), 1, "DIMENSION is missing"),
    (SQUARE.replace("2 0 10", "2 nan 10"), 7, "'nan' is not a number"),
    (SQUARE.replace("2 0 10", "2 1e999 10"), 7, "too large"),
    (SQUARE.replace("2 0 10", "2 1_0 10"), 7, "not a number"),
    (SQUARE.replace("2 0 10", "2 1-2 10"), 7, "not a number"),
    (SQUARE.replace("2 0 10", "2 0 10 7"), 7, "13 numbers"),
    (SQUARE.replace("2 0 10", "3 0 10"), 7, "node number 3"),
    (SQUARE.replace("2 0 10", "oops"), 7, "unexpected 'oops'"),
    (SQUARE.replace("TYPE : TSP", "TYPE : SOP"), 2, "TYPE SOP"),
    (SQUARE.replace("TYPE : TSP", "TYPE : TOUR"), 2, "this is a tour"),
    (SQUARE.replace("EUC_2D", "EUC_3D"), 4, "EUC_3D is not supported"),
    (SQUARE.replace("NODE_COORD_SECTION", "NODE_CORD_SECTION"), 5, "not supported"),
    (SQUARE.replace("NODE_COORD_SECTION\n", ""), 5, "before any section"),
    (SQUARE.replace("DIMENSION : 4", "DIMENSION : 4\nDIMENSION : 5"), 4, "twice"),
    (VAN.replace("3 10\n", "3 11\n"), 14, "exceeds the CAPACITY 10"),
    (VAN.replace("3 10\n", "3 -1\n"), 14, "is negative"),
    (VAN.replace("2 0\n3 10", "2 1\n3 10"), 11, "the depot, node 2"),
    (VAN.replace("CAPACITY : 10\n", ""), 1, "CAPACITY is missing"),
    (VAN.replace("CAPACITY : 10", "CAPACITY : -3"), 5, "not a positive number"),
    (VAN.replace(" 2\n -1", " 9\n -1"), 17, "no node 9"),
    (VAN.replace(" 2\n -1", " 1 2\n -1"), 16, "2 depots"),
    (VAN.replace("DEPOT_SECTION", "TIME_WINDOW_SECTION"), 16, "another problem"),
    (VAN.replace("CAPACITY : 10", "CAPACITY : 10\nDISTANCE : 7"), 6, "limits routes"),
    (explicit("FULL_MATRIX", [0.0, 1, 2, 3, 9, *WEIGHTS.reshape(-1)[5:]]), 5, "differ by direction"),
    (explicit("UPPER_ROW", [1, 2, 3, 4, 5]), 5, "needs 6"),
    (explicit("UPPER_ROW", [1, 2, 3, 4, 5, -6]), 5, "negative"),
    (explicit("UPPER_ROW", [1, 2, 3, 4, 5, 6], kind="ATSP"), 4, "one direction"),
    (explicit("SPIRAL", [1, 2, 3]), 4, "SPIRAL is not supported"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD)
def test_bad_files_are_refused_with_their_line(text: str, line: int, message: str) -> None:
    """Every broken file is a DataError whose message and line point at the defect."""
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        tsplib.parse(text, at="a.tsp")
    assert caught.value.at == f"a.tsp:{line}"


def test_tour_file_round_trip(tmp_path: Path) -> None:
    """A written .tour reads back as the same order, in the file's own numbers."""
    item = tsplib.parse(SQUARE, name="square")
    tours.write_tour(tmp_path / "square.tour", "square", [2, 0, 1, 3], item.numbers, cost=48.0)
    text = (tmp_path / "square.tour").read_text()
    assert "TOUR_SECTION\n3\n1\n2\n4\n-1\nEOF\n" in text
    assert tours.parse_tour(text, item) == [2, 0, 1, 3]


def test_sol_file_round_trip(tmp_path: Path) -> None:
    """A written .sol lists one line per route and reads back as the same walk and cost."""
    item = tsplib.parse(VAN, name="van")
    tours.write_sol(tmp_path / "van.sol", [0, 1, 3, 0, 2, 0], 36.0, item.numbers)
    assert (tmp_path / "van.sol").read_text() == "Route #1: 0 3\nRoute #2: 2\nCost 36\n"
    reference = tours.read_reference(tmp_path / "van.sol", item)
    assert (reference.tour, reference.cost, reference.proved) == ((0, 1, 3, 0, 2), 36.0, False)


def test_a_sol_with_a_wrong_cost_or_an_overfull_route_is_refused(tmp_path: Path) -> None:
    """A reference is believed only if it is feasible and costs what it says."""
    item = tsplib.parse(VAN, name="van")
    for text, message in (("Route #1: 0 3\nRoute #2: 2\nCost 99\n", "says 99"), ("Route #1: 0 2 3\n", "carries")):
        (tmp_path / "van.sol").write_text(text)
        with pytest.raises(DataError, match=message):
            tours.read_reference(tmp_path / "van.sol", item)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TOUR_SECTION\n1 2 3 7 -1\n", "no node 7"),
        ("DIMENSION : 9\nTOUR_SECTION\n1 2 3 4 -1\n", "DIMENSION 9"),
        ("TYPE : TOUR\n", "TOUR_SECTION is missing"),
        ("TOUR_SECTION\n1 2 x 4 -1\n", "not a number"),
    ],
)
def test_bad_tours_are_refused(text: str, message: str) -> None:
    """A tour of another instance, or no tour at all, is a DataError with file and line."""
    with pytest.raises(DataError, match=message) as caught:
        tours.parse_tour(text, tsplib.parse(SQUARE, name="square"), at="a.tour")
    assert caught.value.at.startswith("a.tour:")


def test_unrounded_distances_are_not_written_as_tsplib() -> None:
    """TSPLIB has no exact Euclidean type, so such an instance is refused instead of silently rounded."""
    from cnf_cli.formats.item import Item

    with pytest.raises(DataError, match="cannot be written"):
        export.render(Item("tsp", xy=np.zeros((3, 2))))
