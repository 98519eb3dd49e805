"""A user's own files through solve, evaluate and attack: the same scale, the same price, the same answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.bench.embedded import embedded
from cnf_cli.formats import export
from tests.helpers import cnf, cnf_json


def csv_file(folder: Path, name: str, nodes: int, width: float = 1000.0, seed: int = 1) -> Path:
    """A map of stops on a plane `width` wide."""
    xy = np.random.default_rng(seed).uniform(0, width, (nodes, 2))
    path = folder / name
    path.write_text("x,y\n" + "".join(f"{x!r},{y!r}\n" for x, y in xy.tolist()))
    return path


def test_a_solver_beside_the_default_policy_never_takes_its_place(tmp_path: Path) -> None:
    """`--data F --solver S` measures the default policy and S, and says where S made the reference of its own row."""
    given = ("evaluate", "--data", str(csv_file(tmp_path, "mine.csv", 9)), "--aug", "2", "--solver", "descent")
    told = cnf_json(*given, "--reference", "farthest", store=tmp_path / "s")
    methods = list(dict.fromkeys(row["method"] for row in told["rows"]))
    assert methods == ["zoo/tsp20", "descent"]
    assert not any("own answers" in note for note in told["notes"])
    own = cnf_json(*given, "--reference", "descent", store=tmp_path / "s")
    assert any("descent" in note and "its own answers" in note and "--reference" in note for note in own["notes"])


def test_solvers_alone_are_measured_where_no_policy_can_read_the_data(tmp_path: Path) -> None:
    """A matrix without coordinates: the default policy is left out, which is said, and the solver is measured."""
    file = tmp_path / "bare.tsp"
    rows = "\n".join(" ".join(str(abs(i - j) * 3) for j in range(6)) for i in range(6))
    file.write_text(
        "NAME: bare\nTYPE: TSP\nDIMENSION: 6\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\n"
        f"EDGE_WEIGHT_SECTION\n{rows}\nEOF\n"
    )
    given = ("evaluate", "--data", str(file), "--reference", "farthest")
    told = cnf_json(*given, "--solver", "descent", store=tmp_path / "s")
    assert {row["method"] for row in told["rows"]} == {"descent"}
    assert any("no policy" in note and "bare" in note for note in told["notes"])


def test_own_files_are_listed_one_by_one(tmp_path: Path) -> None:
    """Every file has a line with its cost and gap, as a benchmark's instances have; a drawn set has none."""
    files = [csv_file(tmp_path, f"stop{k}.csv", 7 + k, seed=k) for k in range(3)]
    given = [word for file in files for word in ("--data", str(file))]
    told = cnf_json("evaluate", *given, "--aug", "2", "--reference", "descent", store=tmp_path / "s")
    assert [row["name"] for row in told["instances"]] == ["stop0", "stop1", "stop2"]
    for row in told["instances"]:
        assert set(row["cost"]) == set(row["gap_percent"]) == {"zoo/tsp20"}
        assert row["reference"] > 0
    shown = cnf("evaluate", *given, "--aug", "2", "--reference", "descent", store=tmp_path / "s").stdout
    assert shown.index("stop2") < shown.index("mean of 3")
    drawn = cnf("data", "generate", "tsp", "--n", "8", "--count", "3", "-q", store=tmp_path / "s").stdout.strip()
    assert "instances" not in cnf_json("evaluate", "--data", drawn, "--reference", "descent", store=tmp_path / "s")


def test_a_range_of_sizes_finds_the_embedded_instances(tmp_path: Path) -> None:
    """Offline, `tsplib:..60` is measured on what the package holds of that size, and says how little is the paper's."""
    done = cnf("evaluate", "--bench", "tsplib:..60", "--aug", "1", "--json", store=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [row["name"] for row in told["instances"]] == ["ulysses16", "ulysses22", "dantzig42"]
    assert "no instance is among the paper's 39" in done.stderr


@pytest.mark.parametrize("command", ["solve", "evaluate"])
def test_more_copies_than_a_problem_has_are_refused_with_the_range(tmp_path: Path, command: str) -> None:
    """`--aug 16` on TSP is bad usage that names 1 to 8, with either command; nothing is called a bug."""
    file = str(csv_file(tmp_path, "a.csv", 6))
    given = ("solve", file) if command == "solve" else ("evaluate", "--data", file, "--reference", "descent")
    done = cnf(*given, "--aug", "16", store=tmp_path / "s")
    assert done.returncode == 2, done.stderr
    assert "1 to 8" in done.stderr
    assert "bug" not in done.stderr


def test_solve_knows_the_instances_of_the_libraries(tmp_path: Path) -> None:
    """A library's instance shows its best known cost under any file name; a changed one does not."""
    item = embedded("tsp")["ulysses16"]
    assert item.xy is not None
    export.write(tmp_path / "mine.tsp", item)
    export.write(tmp_path / "other.tsp", replace(item, xy=item.xy + 1))
    export.write(tmp_path / "x.vrp", embedded("cvrp")["X-n101-k25"])
    rows = {}
    for files in (("mine.tsp", "other.tsp"), ("x.vrp",)):
        told = cnf_json("solve", *(str(tmp_path / name) for name in files), "--aug", "1", store=tmp_path / "s")
        rows |= {row["name"]: row for row in told["rows"]}
    known = sorted(row["reference"] or 0 for row in rows.values())
    assert known == [0, 6859, 27591]
    assert all(row["gap_percent"] >= 0 for row in rows.values() if row["reference"])


def test_a_librarys_instance_has_its_best_known_cost_as_reference(tmp_path: Path) -> None:
    """`evaluate --data` of a library's file measures against what the library publishes, of others against a solver."""
    file, own = tmp_path / "mine.tsp", csv_file(tmp_path, "own.csv", 9)
    export.write(file, replace(embedded("tsp")["ulysses16"], cost=float("nan"), tour=()))
    given = ("evaluate", "--data", str(file), "--data", str(own), "--aug", "1", "--reference", "farthest")
    told = cnf_json(*given, store=tmp_path / "s")
    first, second = told["instances"]
    assert first["reference"] == 6859
    assert first["gap_percent"]["zoo/tsp20"] == 100 * (first["cost"]["zoo/tsp20"] / 6859 - 1)
    assert second["reference"] != 6859
    (solved,) = cnf_json("solve", str(file), "--aug", "1", "--with", "zoo/tsp20", store=tmp_path / "s")["rows"]
    assert (solved["reference"], solved["cost"]) == (6859, first["cost"]["zoo/tsp20"])
