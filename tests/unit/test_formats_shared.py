"""Every public file is read, and every published tour costs what was published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.formats import tours, tsplib
from cnf_cli.formats.dataset import Dataset
from cnf_cli.formats.read import read_any
from cnf_cli.problems.distance import distance_matrix

COUNTS = {"tsplib": 80, "atsplib": 19, "cvrplib": 100}


def test_every_published_tour_costs_what_was_published(shared: Path) -> None:
    """All .opt.tour and .sol files are feasible and re-cost to the best known value; one tour has no instance there."""
    best = json.loads((shared / "data/best_known.json").read_text())
    known = {**best["tsp"], **best["cvrp_x"]}
    checked, alone = 0, []
    for path in sorted([*(shared / "data/tsplib").glob("*.opt.tour"), *(shared / "data/cvrplib").glob("*.sol")]):
        name = path.name.split(".")[0]
        instance = next((p for s in (".tsp", ".vrp") if (p := path.with_name(name + s)).exists()), None)
        if instance is None:
            alone.append(path.name)
            continue
        reference = tours.read_reference(path, tsplib.read(instance))
        assert reference.cost == known[name], path.name
        checked += 1
    assert alone == ["pr2392.opt.tour"]
    assert checked == 131


@pytest.mark.parametrize("folder", COUNTS)
def test_every_library_folder_is_read(shared: Path, folder: str) -> None:
    """Every instance file of the folder is in the data set, under its file's name."""
    found = read_any([shared / "data" / folder])
    assert isinstance(found, Dataset)
    names = [name for block in found.blocks for name in block.names]
    files = [p.stem for p in (shared / "data" / folder).iterdir() if p.suffix in (".tsp", ".atsp", ".vrp")]
    assert sorted(names) == sorted(files)
    assert len(found) == COUNTS[folder]


@pytest.mark.parametrize(
    ("files", "solutions", "mean"),
    [
        ("tsp50_uniform.pkl", "concorde_tsp50_uniform.pkl", 5.688249),
        ("cvrp50_uniform.pkl", "hgs_cvrp50_uniform.pkl", 10.383451),
        ("atsp20_clean", "lkh_atsp20.pkl", 1.546133),
    ],
)
def test_public_sets_have_their_published_mean(shared: Path, files: str, solutions: str, mean: float) -> None:
    """1000 instances each, paired with their solutions; the recomputed mean cost is the published one."""
    found = read_any([shared / "data/sets" / files], solutions=shared / "data/sets" / solutions)
    assert isinstance(found, Dataset)
    assert len(found) == 1000
    assert found.blocks[0].cost is not None
    assert found.blocks[0].cost.mean() == pytest.approx(mean, abs=1e-6)


def test_agrees_with_vrplib_where_vrplib_works(shared: Path) -> None:
    """Coordinates, demands, capacity, matrices and rounded distances equal those of an independent reader."""
    vrplib = pytest.importorskip("vrplib")
    for path in sorted((shared / "data/cvrplib").glob("*.vrp"))[:30]:
        ours, theirs = tsplib.read(path), vrplib.read_instance(path)
        np.testing.assert_array_equal(ours.xy, theirs["node_coord"])
        np.testing.assert_array_equal(ours.demand, theirs["demand"])
        assert ours.capacity == theirs["capacity"]
        exact = theirs["edge_weight"]
        np.testing.assert_array_equal(distance_matrix("euc_2d", ours.xy), np.floor(exact + 0.5))
        assert (
            tours.read_reference(path.with_suffix(".sol"), ours).cost
            == vrplib.read_solution(path.with_suffix(".sol"))["cost"]
        )
    compared = 0
    for path in sorted([*(shared / "data/tsplib").glob("*.tsp"), *(shared / "data/atsplib").glob("*.atsp")]):
        try:
            theirs = vrplib.read_instance(path, compute_edge_weights=False)
        except Exception:  # it cannot read wrapped matrices and several layouts
            continue
        ours = tsplib.read(path)
        if ours.xy is not None and "node_coord" in theirs:
            np.testing.assert_array_equal(ours.xy, theirs["node_coord"])
            compared += 1
        weights = np.asarray(theirs.get("edge_weight", ()))
        if weights.shape == (ours.nodes, ours.nodes) and ours.problem == "atsp":
            np.testing.assert_array_equal(ours.matrix, weights * (1 - np.eye(ours.nodes)))
            compared += 1
    assert compared >= 50
