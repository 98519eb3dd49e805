"""What an HDF5 file says about its references is judged: tours again, costs again, and proofs are its own claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnf_cli.errors import CheckFailed, DataError
from cnf_cli.evaluation.answers import columns_of
from cnf_cli.evaluation.proofs import check_answers
from cnf_cli.evaluation.protocol import SetEntry
from cnf_cli.evaluation.result_table import rows_of
from cnf_cli.formats.dataset import Block, Dataset, save
from cnf_cli.formats.read import read_any
from cnf_cli.pipeline.job import Artifact
from cnf_cli.pipeline.runner import Runner
from cnf_cli.recipe.sections import RuntimeSection
from cnf_cli.solvers.run import solver
from cnf_cli.stages import imported
from cnf_cli.store import Store
from tests.helpers import cnf

SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])


def block(**changes: Any) -> Block:
    """Two squares with their shortest tours, called optimal."""
    keys: dict[str, Any] = {"xy": np.stack([SQUARE, SQUARE * 2]), "names": ("one", "two"), "cost": [4.0, 8.0]}
    keys |= {"tour": [[0, 1, 2, 3], [0, 1, 2, 3]], "proved": [True, True]}
    return Block(**(keys | changes))


def routes(**changes: Any) -> Block:
    """Two squares with a depot in a corner and room for two customers."""
    keys = {"demand": [[0, 1, 1, 1]] * 2, "capacity": [2, 2], "tour": [[0, 1, 0, 2, 3], [0, 1, 2, 0, 3]]}
    return block(**({"cost": None} | keys | changes))


def read(tmp_path: Path, given: Block) -> Dataset:
    save(tmp_path / "a.h5", Dataset("tsp" if given.demand is None else "cvrp", (given,), solver="concorde"))
    found = read_any([tmp_path / "a.h5"])
    assert isinstance(found, Dataset)
    return found


FAR = block(xy=np.stack([SQUARE, SQUARE * 1e300]), tour=None, cost=None, proved=None)
WRONG: dict[str, tuple[Block, str]] = {
    "a tour of zeros": (block(tour=[[0, 0, 0, 0], [0, 1, 2, 3]]), "one is wrong: node 0 is visited 4 times"),
    "a node twice": (block(tour=[[0, 1, 2, 3], [0, 1, 2, 2]], cost=None), "two is wrong: node 2 is visited 2 times"),
    "a node left out": (block(tour=[[0, 1, 2, 3], [0, 1, 2, -1]], cost=None), "two is wrong: node 3 is visited 0"),
    "a cost too low": (block(cost=[3.5, 8.0]), "one costs 4, its file says 3.5"),
    "a cost below zero": (block(cost=[4.0, -8.0]), "the reference of two costs -8"),
    "a cost alone below zero": (block(tour=None, cost=[-1.0, 8.0]), "the reference of one costs -1"),
    "an overload": (routes(tour=[[0, 1, 2, 3, -1], [0, 1, 2, 0, 3]]), "one is wrong: route 1 carries 3"),
    "no depot first": (routes(tour=[[0, 1, 0, 2, 3], [1, 2, 0, 3, -1]]), "two is wrong: the walk does not start"),
    "a proof of nothing": (block(tour=None, cost=[np.nan, 8.0]), "one is said to be proved optimal"),
    "proofs without references": (block(tour=None, cost=None), "claims proofs and holds no references"),
    "the same number twice": (block(extra={"ids": np.array([[1, 2, 3, 3]] * 2)}), "different whole numbers"),
    "a number below zero": (block(extra={"ids": np.array([[1, 2, 3, -4]] * 2)}), "different whole numbers"),
    "too few numbers": (block(extra={"ids": np.array([[1, 2, 3]] * 2)}), "different whole numbers"),
    "numbers that are none": (block(extra={"ids": np.array([[1.5, 2, 3, 4]] * 2)}), "different whole numbers"),
    "a place beyond squaring": (FAR, "too large"),
    "a cost beyond squaring": (block(tour=None, cost=[4.0, 1e200]), "the reference of two costs 1e"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reference_is_an_error_that_names_its_instance(tmp_path: Path, name: str) -> None:
    """References that no tour of the instance supports are refused when the file is read, with file and instance."""
    given, message = WRONG[name]
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, given)
    assert "a.h5" in str(caught.value.at)


@pytest.mark.parametrize("given", [block(), routes(), block(cost=None), block(tour=None, proved=None)])
def test_a_right_reference_is_costed_again(tmp_path: Path, given: Block) -> None:
    """Feasible tours stay, their cost is what they cost here, and a cost that has no tour stays as it is said."""
    found = read(tmp_path, given).blocks[0]
    assert found.cost is not None
    want = [4.0, 8.0] if given.demand is None else [2 + 2 + 2**0.5, 2 * (2 + 2**0.5 + 2)]
    if given.demand is not None:
        want = [2 + (2**0.5 + 1 + 1), 2 * (1 + 1 + 2**0.5) + 4]
    assert found.cost.tolist() == pytest.approx(want)
    assert (found.tour is None) == (given.tour is None)


def test_a_cost_is_replaced_by_the_tours_own(tmp_path: Path) -> None:
    """A cost within the reader's slack is not kept: gaps are to what the tour really costs."""
    found = read(tmp_path, block(cost=[4.0, 8.0 * 1.0005]))
    assert found.blocks[0].cost.tolist() == [4.0, 8.0]


def test_a_proof_from_a_file_is_its_claim() -> None:
    """The row of an evaluation does not call proved what only a file calls so."""
    data = Dataset("tsp", (replace(block(), extra={"cost_0": np.array([[4.0], [8.5]])}),), solver="concorde")
    (ours,) = columns_of(data, SetEntry(name="a", only=-1), ["policy"])
    (theirs,) = columns_of(data, SetEntry(name="a", only=-1), ["policy"], claimed=True)
    told = [(row["proved"], row["reference"]) for row in (next(rows_of(c, 1, "greedy")) for c in (ours, theirs))]
    assert told == [(True, "concorde, proved optimal"), (False, "concorde, claimed optimal in the file")]


def test_a_cost_below_a_claimed_optimum_names_the_instance() -> None:
    """An answer cheaper than what a file calls optimal stops the evaluation; rounding or no claim do not."""

    def check(cost: float, proved: bool) -> None:
        given = block(proved=[True, proved], extra={"cost_0": np.array([[4.0], [cost]])})
        check_answers(Dataset("tsp", (given,)), ["policy"], {}, claimed=True)

    said = r"policy has a tour of two that costs 7\.9, and the reference .*of its file\) says that 8"
    with pytest.raises(CheckFailed, match=said):
        check(7.9, True)
    check(7.9, False)
    check(8 - 1e-6, True)


def test_an_imported_proof_is_a_claim_in_the_evaluation(tmp_path: Path) -> None:
    """From the file through `cnf import` and `cnf evaluate` to the printed row."""
    if not solver("descent").available():
        pytest.skip("the built-in heuristic is not available")
    save(tmp_path / "a.h5", Dataset("tsp", (block(),), solver="somebody"))
    store = Store(tmp_path / "store")
    key = Runner(store, RuntimeSection(threads=1)).run(imported.task([tmp_path / "a.h5"])).key
    made = store.find(key)
    assert made is not None
    assert Artifact(store, made).names() == ["data.h5"]
    done = cnf("evaluate", "--data", key[:12], "--solver", "descent", "--json", store=tmp_path / "store")
    assert done.returncode == 0, done.stderr
    assert "somebody, claimed optimal in the file" in done.stdout
