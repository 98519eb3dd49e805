"""Nothing of the user's is overwritten: every command that writes a file refuses one that is there, unless told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import cnf, cnf_json

VAN = """NAME : van
TYPE : CVRP
DIMENSION : 3
EDGE_WEIGHT_TYPE : EUC_2D
CAPACITY : 10
NODE_COORD_SECTION
1 0 0
2 0 10
3 10 {x}
DEMAND_SECTION
1 0
2 4
3 5
DEPOT_SECTION
1
-1
EOF
"""
MAP = "".join(f"{x},{y}\n" for x in range(3) for y in range(4))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_write_sol_leaves_the_users_own_solution_alone(tmp_path: Path) -> None:
    """`cnf solve small.vrp --write-sol .` beside the user's small.sol: refused before anything is solved."""
    store, here = tmp_path / "store", tmp_path / "here"
    here.mkdir()
    (here / "small.vrp").write_text(VAN.format(x=10))
    (here / "small.sol").write_text("Route #1: 1 2\nCost 34\n")
    before = snapshot(here)
    words = ("solve", "small.vrp", "--write-sol", ".", "--with", "zoo/cvrp20")
    done = cnf(*words, store=store, cwd=here)
    assert done.returncode == 2, done.stderr
    assert "exists already" in done.stderr
    assert "--force" in done.stderr
    assert snapshot(here) == before
    assert cnf(*words, "--force", store=store, cwd=here).returncode == 0
    assert snapshot(here)["small.sol"] != before["small.sol"]


def test_two_instances_never_share_a_solution_file(tmp_path: Path) -> None:
    """Files of one name from two folders, and names that differ in capitals only, each get a file of their own."""
    for folder, name, x in (("a", "small", 10), ("b", "small", 20), ("c", "SMALL", 30)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.vrp").write_text(VAN.format(x=x))
    files = [str(p) for p in sorted(tmp_path.rglob("*.vrp"))]
    words = ("solve", *files, "--write-sol", str(tmp_path / "out"), "--with", "zoo/cvrp20")
    rows = cnf_json(*words, store=tmp_path / "store")["rows"]
    written = [Path(row["file"]) for row in rows]
    assert len({str(path).casefold() for path in written}) == 3
    for row, path in zip(rows, written, strict=True):
        assert float(path.read_text().split("Cost ")[1]) == row["cost"]
    assert len({row["cost"] for row in rows}) == 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """(a store, a data set in it, an evaluation on it)."""
    folder = tmp_path_factory.mktemp("overwrite")
    (folder / "a.csv").write_text(MAP)
    store = folder / "store"
    data = cnf_json("import", str(folder / "a.csv"), store=store)["id"]
    words = ("--data", data, "--with", "zoo/tsp20", "--solver", "nearest", "--as", "mine/evaluation")
    cnf_json("evaluate", *words, store=store)
    return store, data, "mine/evaluation"


@pytest.mark.parametrize("command", ["report", "visualize", "data export", "export", "export tar"])
def test_a_file_that_is_there_is_refused_without_force(
    made: tuple[Path, str, str], tmp_path: Path, command: str
) -> None:
    """Report, figures, data sets and exports: another's file stays, --force replaces it, a repeat is no change."""
    store, data, evaluation = made
    words, target = {
        "report": (("report", evaluation, "--out", "x/page.html"), "x/page.html"),
        "visualize": (("visualize", "tours", evaluation, "--out", "x"), "x/tours.png"),
        "data export": (("data", "export", data, "page.csv"), "page.csv"),
        "export": (("export", data, "x"), "x/data.h5"),
        "export tar": (("export", data, "x.tar"), "x.tar"),
    }[command]
    path = tmp_path / target
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    done = cnf(*words, store=store, cwd=tmp_path)
    assert done.returncode in (2, 3), done.stderr
    assert "--force" in done.stderr
    assert snapshot(tmp_path) == {target: b"mine"}
    assert cnf(*words, "--force", store=store, cwd=tmp_path).returncode == 0
    assert path.read_bytes() != b"mine"
    if command in ("report", "visualize"):
        before = snapshot(tmp_path)
        assert cnf(*words, store=store, cwd=tmp_path).returncode == 0, "the same page is no other's"
        assert snapshot(tmp_path) == before
