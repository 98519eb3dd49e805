"""No answer beats a proof: whoever claims an optimum that somebody's tour undercuts stops the run (promise 22)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.bench.libraries import LIBRARIES, Known, Library
from cnf_cli.bench.sources import known_item
from cnf_cli.errors import CheckFailed
from cnf_cli.evaluation.proofs import check_answers
from cnf_cli.formats.dataset import Block, Dataset
from cnf_cli.formats.item import Item
from cnf_cli.pipeline.runner import Runner
from cnf_cli.problems.proof import beaten, rounding
from cnf_cli.problems.validate import tour_cost
from cnf_cli.solvers.exact import held_karp
from cnf_cli.stages import evaluate, label
from cnf_cli.store import Store
from tests.helpers import cnf
from tests.unit.test_label import load, stored

OPTIMUM = 4.0
"""Of the unit square's four corners."""
SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def squares(cost: float, proved: bool = True, count: int = 3) -> Dataset:
    """Instances with the unit square's corners and a reference of this cost."""
    block = Block(
        xy=np.stack([SQUARE] * count),
        names=tuple(f"square {i}" for i in range(count)),
        cost=np.full(count, cost),
        proved=np.full(count, proved),
    )
    return Dataset("tsp", (block,), solver="liar")


@pytest.mark.parametrize("seed", range(20))
def test_rounding_covers_what_a_proof_on_rounded_distances_can_miss(seed: int) -> None:
    """The optimum on a solver's grid lies, in real distances, within the stated rounding of the best."""
    rng = np.random.default_rng(seed)
    xy = rng.random((8, 2)) * (1.0, 40.0)[seed % 2]
    for grid in (3.0, 7.0, 1e7):  # coarse ones, so that rounding matters: the bound scales with the grid
        unit = max(1.0, np.abs(xy).max()) / grid
        points = np.floor(xy / unit + 0.5)
        whole = np.floor(np.linalg.norm(points[:, None] - points[None], axis=-1) + 0.5)
        proved = tour_cost(held_karp(whole), xy=xy)
        best = tour_cost(held_karp(np.linalg.norm(xy[:, None] - xy[None], axis=-1)), xy=xy)
        assert proved - best <= rounding(8, xy=xy) * 1e7 / grid + 1e-12


def test_whole_distances_leave_no_room() -> None:
    """Rounded rules, whole matrices and whole millionths have no slack; real matrices have one that fits their size."""
    whole = np.array([[0.0, 3, 4], [3, 0, 5], [4, 5, 0]])
    assert rounding(4, xy=SQUARE * 1000, rule="euc_2d") == 0
    assert rounding(3, matrix=whole) == rounding(3, matrix=whole / 1e6) == 0
    assert rounding(3, matrix=whole / 7) == pytest.approx(2 * 3 * 5 / 7 / 1e7)
    assert beaten(3.0, 4.0, 0.9)
    assert not beaten(3.0, 4.0, 1.0)
    assert not beaten(4.0 - 1e-12, 4.0, 0.0)


@pytest.mark.parametrize("claim", [OPTIMUM * 1.001, OPTIMUM + 1e-4])
def test_a_solver_below_a_proved_reference_stops_the_evaluation(tmp_path: Path, claim: float) -> None:
    """`cnf evaluate` ends with exit code 1 and names the instance, the solver and the reference."""
    store = Store(tmp_path / "store")
    data = stored(store, squares(claim), tmp_path)
    solved = label.task(stored(store, replace(squares(claim), blocks=(bare(),)), tmp_path), "nearest")
    with pytest.raises(CheckFailed, match=r"nearest has a tour of square 0 that costs 4, and the reference \(liar\)"):
        Runner(store).run(evaluate.task([evaluate.SetOf("s", data, (solved,))], [], ["nearest"]))


def bare() -> Block:
    """The squares without a reference."""
    return replace(squares(OPTIMUM).blocks[0], cost=None, proved=None)


@pytest.mark.parametrize(
    ("cost", "proved"),
    [(OPTIMUM, True), (OPTIMUM + 1e-6, True), (OPTIMUM * 1.2, False)],
    ids=["true", "rounded", "no proof"],
)
def test_what_is_no_contradiction_passes(tmp_path: Path, cost: float, proved: bool) -> None:
    """An equal cost, one within the reference's rounding, and one below an unproved reference are results."""
    store = Store(tmp_path / "store")
    data = stored(store, squares(cost, proved), tmp_path)
    solved = label.task(stored(store, replace(squares(cost), blocks=(bare(),)), tmp_path), "nearest")
    Runner(store).run(evaluate.task([evaluate.SetOf("s", data, (solved,))], [], ["nearest"]))


def test_a_policy_or_the_reference_below_a_solvers_proof_stops_it_too() -> None:
    """A proof may come from a solver's row as well: then a policy's or the reference's tour may not beat that."""
    block = squares(OPTIMUM, proved=False).blocks[0]
    worse = {"liar": [(np.full(3, 4.5), np.array([False, True, False]))]}
    answered = replace(block, cost=None, proved=None, extra={"cost_0": np.array([[4.5, 4.2], [4.6, 4.2], [4.5, 4.5]])})
    with pytest.raises(CheckFailed, match=r"policy has a tour of square 1 that costs 4.2, and liar says that 4.5"):
        check_answers(Dataset("tsp", (answered,)), ["policy"], worse)
    with pytest.raises(CheckFailed, match=r"the reference \(hgs\) has a tour of square 1 that costs 4, and liar"):
        check_answers(Dataset("tsp", (block,), solver="hgs"), [], worse)


LIAR = """
from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found

class Params(Section):
    pass

class Solver:
    problems, licence, package, exact, least = ("tsp",), "test", "test", True, 0
    def available(self):
        return "1"
    def solve(self, instance, params):
        return Found([0, 2, 1, 3], proved=True)  # crosses over
"""


def test_an_answer_below_a_proof_before_it_stops_the_labelling(tmp_path: Path) -> None:
    """A reference that was proved and a cheaper new tour cannot both be right: both are named."""
    store = Store(tmp_path / "store")
    with pytest.raises(CheckFailed, match=r"nearest has a tour of square 0 that costs 4, and liar \(before\) says"):
        Runner(store).run(label.task(stored(store, squares(4.1), tmp_path), "nearest"))
    made = Runner(store).run(label.task(stored(store, squares(4.2, proved=False), tmp_path), "nearest"))
    assert load(store, made).blocks[0].cost.tolist() == [OPTIMUM] * 3  # type: ignore[union-attr]


def test_a_proof_above_a_tour_before_it_stops_the_labelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that calls any permutation optimal is caught by the tour that the data had."""
    package = tmp_path / "lying_solvers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "liar.py").write_text(LIAR)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = Store(tmp_path / "store")
    data = stored(store, replace(squares(OPTIMUM, proved=False), solver="hgs"), tmp_path)
    with pytest.raises(
        CheckFailed, match=r"hgs \(before\) has a tour of square 0 that costs 4, and lying_solvers.liar"
    ):
        Runner(store).run(label.task(data, "lying_solvers.liar"))


def tsplib(folder: Path, tour: str, order: str) -> Path:
    """The unit square, a thousand times as large, with a tour beside it."""
    lines = [f"{i} {x * 1000:g} {y * 1000:g}" for i, (x, y) in enumerate(SQUARE, 1)]
    head = "NAME: sq\nTYPE: TSP\nDIMENSION: 4\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n"
    (folder / "sq.tsp").write_text(head + "\n".join(lines) + "\nEOF\n")
    (folder / tour).write_text(f"TYPE: TOUR\nDIMENSION: 4\nTOUR_SECTION\n{order} -1\nEOF\n")
    return folder / "sq.tsp"


def test_solve_stops_below_a_files_optimum(tmp_path: Path) -> None:
    """`cnf solve` of an instance whose `.opt.tour` is worse than the policy's answer says so and ends with 1."""
    file = tsplib(tmp_path, "sq.opt.tour", "1 3 2 4")
    done = cnf("solve", str(file), str(tmp_path / "sq.opt.tour"), "--with", "zoo/tsp20", store=tmp_path / "store")
    assert done.returncode == 1, done.stderr
    assert "a tour of sq that costs 4000" in done.stderr
    assert "says that 4828 is proved optimal" in done.stderr
    tsplib(tmp_path, "sq.opt.tour", "1 2 3 4")
    done = cnf("solve", str(file), str(tmp_path / "sq.opt.tour"), "--with", "zoo/tsp20", store=tmp_path / "store")
    assert done.returncode == 0, done.stderr


def test_two_references_of_one_instance_must_agree() -> None:
    """A file's tour below another file's proof, or a proof above a known tour, is refused with both names."""
    item = Item("tsp", xy=SQUARE, name="sq", at="one.tsp")
    proved = item.with_reference([0, 2, 1, 3], None, proved=True, at="sq.opt.tour")
    with pytest.raises(CheckFailed, match=r"sq.tour has a tour of sq that costs 4, and one.tsp says that 4.82"):
        proved.with_reference([0, 1, 2, 3], None, proved=False, at="sq.tour")
    known = item.with_reference([0, 1, 2, 3], None, proved=False, at="sq.tour")
    with pytest.raises(CheckFailed, match=r"one.tsp has a tour of sq that costs 4, and sq.opt.tour says that 4.82"):
        known.with_reference([0, 2, 1, 3], None, proved=True, at="sq.opt.tour")
    assert known.with_reference([0, 3, 2, 1], None, proved=True, at="sq.opt.tour").proved


@pytest.mark.parametrize(("best", "fits"), [(4000.0, True), (4001.0, False)])
def test_a_tour_below_a_librarys_optimum_is_an_error(best: float, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of TSPLIB's with a tour that is better than the published optimum: one of the two is wrong."""
    monkeypatch.setattr(Library, "known", {"sq": Known(best=best)})
    library = LIBRARIES["tsplib"]
    item = Item("tsp", xy=SQUARE * 1000, rule="euc_2d", name="sq", at="sq.tsp")
    item = item.with_reference([0, 1, 2, 3], None, proved=False)
    if fits:
        assert known_item(item, library, []).proved
        return
    with pytest.raises(CheckFailed, match=r"sq.tsp has a tour of sq that costs 4000, and tsplib's"):
        known_item(item, library, [])
