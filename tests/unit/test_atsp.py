"""ATSP: the generator, costs, copies, projection, and reading the public files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Block
from cnf_cli.formats.read import read_any
from cnf_cli.problems.atsp import Params, Problem, close, content_seed, symmetric
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.load import finish


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def off_diagonal(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[:, ~torch.eye(matrix.shape[-1], dtype=torch.bool)]


def test_closure_is_the_fixed_point_of_min_plus() -> None:
    """One pass ends where D <- min_k(D_ik + D_kj) repeated until nothing changes does, and nothing grows."""
    raw = torch.randint(0, 1000, (5, 9, 9), generator=rng())
    raw.diagonal(dim1=1, dim2=2).zero_()
    slow = raw
    while True:
        following = (slow[:, :, :, None] + slow[:, None, :, :]).amin(2)
        if torch.equal(following, slow):
            break
        slow = following
    assert torch.equal(close(raw), slow)
    assert (slow <= raw).all()


def test_generated_matrices_look_like_the_published_ones() -> None:
    """Whole millionths below 1, zero diagonal, triangle inequality, and the means measured on the public set."""
    matrix = Problem(Params(n=20)).sample(500, rng=rng()).matrix
    assert matrix is not None
    units = matrix.double() * 1e6
    assert (units - units.round()).abs().max() < 0.1  # float32 holds six digits and a bit
    assert (matrix.diagonal(dim1=1, dim2=2) == 0).all()
    assert (matrix <= (matrix[:, :, :, None] + matrix[:, None, :, :]).amin(2) + 1e-6).all()
    assert float(off_diagonal(matrix).mean()) == pytest.approx(0.175, abs=0.01)
    assert 0.6 < float(matrix.max()) < 0.95
    assert not torch.equal(matrix, matrix.transpose(1, 2))


def test_closure_can_be_left_out() -> None:
    """Without closure the costs are uniform: mean one half, triangle inequality violated."""
    matrix = Problem(Params(n=12, closure=False)).sample(200, rng=rng()).matrix
    assert matrix is not None
    assert float(off_diagonal(matrix).mean()) == pytest.approx(0.5, abs=0.01)
    assert (matrix > (matrix[:, :, :, None] + matrix[:, None, :, :]).amin(2) + 1e-3).any()


def test_other_distributions_are_maps() -> None:
    """A distribution of places gives the distances between them: symmetric, at most the map's diagonal."""
    matrix = Problem(Params()).sample(3, rng=rng(), n=8, dist="explosion").matrix
    assert matrix is not None
    assert torch.equal(matrix, matrix.transpose(1, 2))
    assert 0 < float(matrix.max()) <= 2**0.5


def test_cost_follows_the_direction() -> None:
    """A tour and its reverse cost what their own arcs say."""
    matrix = torch.tensor([[[0.0, 1, 2], [10, 0, 20], [100, 200, 0]]])
    cost = Problem(Params()).cost(Instances(matrix=matrix), torch.tensor([[[0, 1, 2], [2, 1, 0]]]))
    assert cost.tolist() == [[1 + 20 + 100, 200 + 10 + 2]]


def test_seed_follows_from_the_costs_alone() -> None:
    """Equal matrices have equal seeds in any batch; one other cost, or the transpose, another."""
    problem = Problem(Params())
    inst = problem.sample(4, rng=rng(), n=6)
    assert inst.matrix is not None
    assert inst.seed is not None
    assert torch.equal(content_seed(inst.matrix[2:3]), inst.seed[2:3])
    assert len(set(inst.seed.tolist())) == 4
    changed = inst.matrix.clone()
    changed[:, 0, 1] /= 2
    assert (content_seed(changed) != inst.seed).all()
    assert (content_seed(inst.matrix.transpose(1, 2)) != inst.seed).all()


def test_copies_do_not_depend_on_the_batch() -> None:
    """Copy a of an instance has the same seed alone, in a batch, and among fewer copies; all copies have other ones."""
    problem = Problem(Params())
    inst = problem.sample(3, rng=rng(), n=5)
    many, alone = problem.augment(inst, 16), problem.augment(inst[1:2], 4)
    assert many.seed is not None
    assert alone.seed is not None
    assert torch.equal(many.seed[16:20], alone.seed)
    assert len(set(many.seed.tolist())) == 48


def test_projection_is_joint_and_keeps_the_diagonal() -> None:
    """All costs of an instance are stretched together, so their order stays; the diagonal stays zero."""
    problem = Problem(Params())
    inst = problem.sample(2, rng=rng(), n=6)
    assert inst.matrix is not None
    moved = inst.with_(matrix=inst.matrix * 7 - 2 * (1 - torch.eye(6)))
    out = problem.project(moved, ["matrix"]).matrix
    assert out is not None
    flat = off_diagonal(out)
    assert flat.amin(1).tolist() == [0, 0]
    assert flat.amax(1).tolist() == [1, 1]
    assert torch.equal(flat.argsort(1), off_diagonal(inst.matrix).argsort(1))
    assert (out.diagonal(dim1=1, dim2=2) == 0).all()
    assert problem.project(inst, ["matrix"], "if_needed") is not inst
    torch.testing.assert_close(problem.project(inst, ["matrix"], "if_needed").matrix, inst.matrix)


def test_symmetric_is_symmetric() -> None:
    """Both directions cost the same afterwards, and their sum stays."""
    matrix = torch.rand(2, 5, 5, generator=rng())
    out = symmetric(matrix)
    assert torch.equal(out, out.transpose(1, 2))
    torch.testing.assert_close(out.sum(), matrix.sum())


def test_wrong_data_is_refused() -> None:
    """Coordinates without a matrix, and negative costs, are errors that say so."""
    problem = Problem(Params())
    with pytest.raises(DataError, match="only coordinates"):
        problem.from_block(Block(xy=np.random.default_rng(0).random((1, 4, 2))))
    bad = np.ones((2, 4, 4))
    bad[1, 0, 2] = -1
    with pytest.raises(DataError, match="instance 1 has a negative"):
        problem.from_block(Block(matrix=bad, rule="explicit"))


def test_policy_of_a_bare_problem() -> None:
    """A recipe that names no policy gets the one that reads its problem; one that names another gets that."""
    assert finish("a", {"problem": {"kind": "atsp", "n": 20}}, {}).policy.kind == "matnet"
    assert finish("a", {"problem": {"kind": "tsp", "n": 20}}, {}).policy.kind == "pomo"
    narrow = finish("a", {"problem": {"kind": "atsp"}}, {}, ["policy.width=32"]).policy
    assert (narrow.kind, narrow.width) == ("matnet", 32)  # type: ignore[attr-defined]
    assert finish("a", {"problem": {"kind": "atsp"}, "policy": {"kind": "pomo"}}, {}).policy.kind == "pomo"


def test_public_set_is_read_and_its_tours_recost(shared: Path) -> None:
    """The 1000 published matrices lie in the domain as they are, and LKH's tours cost what the file says."""
    files = sorted((shared / "data/sets/atsp20_clean").iterdir())
    data = read_any(files, solutions=shared / "data/sets/lkh_atsp20.pkl")
    block = data.blocks[0]  # type: ignore[union-attr]
    problem = Problem(Params(n=20))
    inst = problem.from_block(block)
    assert (len(inst), inst.nodes) == (1000, 20)
    assert inst.matrix is not None
    assert float(inst.matrix.max()) < 1
    assert block.tour is not None
    assert block.cost is not None
    cost = problem.cost(inst, torch.from_numpy(block.tour[:, None, :20].astype(np.int64)))[:, 0]
    np.testing.assert_allclose(cost.numpy(), block.cost, atol=1e-5)
    assert float(cost.mean()) == pytest.approx(1.546133, abs=1e-5)


def test_atsplib_is_read_and_normalised(shared: Path) -> None:
    """Every ATSPLIB matrix becomes costs in [0, 1] with zero diagonal, largest 1; ratios between costs stay."""
    files = sorted((shared / "data/atsplib").glob("*.atsp"))
    assert len(files) >= 18
    for block in read_any(files).blocks:  # type: ignore[union-attr]
        fitted, raw = (
            Problem(Params()).scaled([block], "fit")[0].instances.matrix,
            Problem(Params()).from_block(block).matrix,
        )
        assert fitted is not None
        assert raw is not None
        assert (fitted.diagonal(dim1=1, dim2=2) == 0).all()
        assert (fitted.amax((1, 2)) == 1).all()
        torch.testing.assert_close(fitted * raw.amax((1, 2), keepdim=True), raw)
