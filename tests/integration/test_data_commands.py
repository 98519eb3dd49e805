"""Data in, tours out: generate, import, show, export, solve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.formats import dataset
from cnf_cli.problems.validate import check_tour
from tests.helpers import cnf, cnf_json

SMALL = ["--set", "policy.width=16", "--set", "policy.layers=1", "--set", "policy.feed_forward=32"]
QUICK = [*SMALL, "--set", "pretrain.instances=64", "--set", "pretrain.validation_count=0"]


def test_generate_is_repeatable_and_shown(tmp_path: Path) -> None:
    """Equal seeds give equal bytes, a shorter set is the beginning of a longer one, and `show` tells what is in it."""
    args = ["data", "generate", "cvrp", "--n", "7", "--dist", "rotation", "--seed", "1"]
    a = cnf_json(*args, "--count", "30", store=tmp_path)["id"]
    b = cnf_json(*args, "--count", "12", store=tmp_path)["id"]
    files = [Path(cnf_json("path", key, store=tmp_path)["path"]) for key in (a, b)]
    long, short = (dataset.load(file).blocks[0] for file in files)
    assert long.xy is not None
    assert short.xy is not None
    assert np.array_equal(long.xy[:12], short.xy)
    shown = cnf_json("data", "show", "data/cvrp7-rotation-1", store=tmp_path)
    assert (shown["problem"], shown["count"], shown["blocks"][0]["nodes"]) == ("cvrp", 12, 8)


def test_export_and_import_round_trip(tmp_path: Path) -> None:
    """A data set exported to CSV or HDF5 and imported again holds the same instances."""
    key = cnf_json("data", "generate", "cvrp", "--n", "6", "--count", "3", store=tmp_path)["id"]
    original = dataset.load(Path(cnf_json("path", key, store=tmp_path)["path"])).blocks[0]
    for name in ("one.csv", "all.h5"):
        file = tmp_path / name
        cnf_json("data", "export", key, str(file), "--row", "1", store=tmp_path)
        again = cnf_json("import", str(file), "--as", f"x/{name[:3]}", store=tmp_path)["id"]
        block = dataset.load(Path(cnf_json("path", again, store=tmp_path)["path"])).blocks[0]
        row = 1 if name == "all.h5" else 0
        assert original.xy is not None
        assert block.xy is not None
        assert block.demand is not None
        assert original.demand is not None
        np.testing.assert_allclose(block.xy[row], original.xy[1], atol=1e-12)
        np.testing.assert_array_equal(block.demand[row], original.demand[1])
    assert cnf("data", "export", key, str(tmp_path / "one.csv"), store=tmp_path).returncode == 2


def test_solve_a_csv_without_naming_a_policy(tmp_path: Path) -> None:
    """`cnf solve FILE` takes the zoo's policy, then the user's newest that fits and says so; its tour is sound."""
    xy = np.random.default_rng(0).uniform(-50, 900, (23, 2))
    file = tmp_path / "stops.csv"
    file.write_text("x,y\n" + "\n".join(f"{x!r},{y!r}" for x, y in xy.tolist()))
    bare = cnf("solve", str(file), store=tmp_path / "s")
    assert bare.returncode == 0, bare.stderr
    assert "using zoo/tsp" in bare.stderr
    assert "cnf pretrain tsp" in bare.stderr
    assert cnf("pretrain", "tsp", "--n", "22", *QUICK, store=tmp_path / "s").returncode == 0
    done = cnf("solve", str(file), "--write-sol", str(tmp_path / "out"), "--json", store=tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert "with your newest policy for tsp" in done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    lines = (tmp_path / "out" / "stops.tour").read_text().splitlines()
    tour = [int(v) - 1 for v in lines[lines.index("TOUR_SECTION") + 1 : lines.index("-1")]]
    assert check_tour(tour, xy=xy) == pytest.approx(row["cost"], rel=1e-9)


def test_solve_refuses_a_policy_of_another_problem(tmp_path: Path) -> None:
    """A CVRP file with a TSP policy is an error that says what to do."""
    cnf_json("pretrain", "tsp", "--n", "6", *QUICK, "--as", "mine", store=tmp_path)
    file = tmp_path / "a.csv"
    file.write_text("# capacity: 10\nx,y,demand\n0,0,0\n1,0,3\n0,1,4\n")
    done = cnf("solve", str(file), "--with", "mine", store=tmp_path)
    assert done.returncode == 3
    assert "policy for tsp" in done.stderr


def test_import_of_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    """A hostile pickle is named and refused, and nothing ran."""
    file, canary = tmp_path / "evil.pkl", tmp_path / "canary"
    file.write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    done = cnf("import", str(file), store=tmp_path / "s")
    assert done.returncode == 2, done.stderr
    assert not canary.exists()
    assert "evil.pkl" in done.stderr


@pytest.mark.parametrize(("problem", "limit"), [("tsp", 0.3), ("cvrp", 2.0)])
def test_published_weights_on_published_instances(shared: Path, tmp_path: Path, problem: str, limit: float) -> None:
    """Imported AMDKD policies solve the first public instances within the expected gap; every tour is judged again."""
    solver = {"tsp": "concorde", "cvrp": "hgs"}[problem]
    sets = shared / "data" / "sets"
    weights = shared / "weights" / f"amdkd-pomo-{problem}50.pt"
    done = cnf("import", str(weights), "--as", "amdkd", store=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "W_embed" in done.stderr
    data = [str(sets / f"{problem}50_uniform.pkl"), "--solutions", str(sets / f"{solver}_{problem}50_uniform.pkl")]
    key = cnf_json("import", *data, store=tmp_path)["id"]
    whole = dataset.load(Path(cnf_json("path", key, store=tmp_path)["path"]))
    block = whole.blocks[0]
    few = {k: v[:30] for k, v in vars(block).items() if isinstance(v, np.ndarray) and v is not None}
    dataset.save(tmp_path / "few.h5", dataset.Dataset(problem, (dataset.Block(**few),), solver=solver))
    rows = cnf_json("solve", str(tmp_path / "few.h5"), "--with", "amdkd", store=tmp_path)["rows"]
    gaps = [row["gap_percent"] for row in rows]
    assert len(gaps) == 30
    assert -0.001 < sum(gaps) / 30 < limit


def test_kroa100_gives_a_valid_tour_file(shared: Path, tmp_path: Path) -> None:
    """The imported TSP100 policy solves kroA100; the written tour re-costs to the printed cost by TSPLIB's rule."""
    cnf_json("import", str(shared / "weights" / "amdkd-pomo-tsp100.pt"), "--as", "amdkd", store=tmp_path)
    file = shared / "data" / "tsplib" / "kroA100.tsp"
    (row,) = cnf_json("solve", str(file), "--with", "amdkd", "--write-sol", str(tmp_path / "o"), store=tmp_path)["rows"]
    again = cnf_json("import", str(file), str(tmp_path / "o" / "kroA100.tour"), store=tmp_path)["id"]
    block = dataset.load(Path(cnf_json("path", again, store=tmp_path)["path"])).blocks[0]
    assert block.cost is not None
    assert float(block.cost[0]) == row["cost"]
    assert 21282 <= row["cost"] < 21282 * 1.03
