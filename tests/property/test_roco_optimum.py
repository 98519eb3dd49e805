"""For any matrix and any victim, ROCO's instances stay valid and their optimum never rises."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cnf_cli.attacks import roco
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.problems import atsp
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.validate import tour_cost
from cnf_cli.solvers.exact import held_karp

PROBLEM = atsp.Problem(atsp.Params(n=6))


def whimsical(seed: int):  # type: ignore[no-untyped-def]
    """A victim whose tours are a hash of the matrix: nothing can be assumed about it."""

    def victim(inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
        assert inst.matrix is not None
        rows = []
        for matrix in inst.matrix:
            value = int(atsp.content_seed(matrix[None])[0]) ^ seed
            rows.append(torch.randperm(inst.nodes, generator=torch.Generator().manual_seed(value & (2**62 - 1))))
        tours = torch.stack(rows)
        return tours, PROBLEM.cost(inst, tours[:, None])[:, 0]

    return victim


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 6),
    scale=st.sampled_from([0.0, 1e-6, 1.0]),
    kind=st.sampled_from(["beam", "random", "anneal", "ppo"]),
    rule=st.sampled_from(["off_tour", "released", "all"]),
    steps=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_optimum_never_rises(n: int, scale: float, kind: str, rule: str, steps: int, seed: int) -> None:
    """No cost rises or turns negative, at most `steps` change, the optimum is no dearer, and all numbers are finite."""
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.rand(2, n, n, generator=rng) * scale
    matrix.diagonal(dim1=1, dim2=2).zero_()
    clean = Instances(matrix=matrix)
    small = {"width": 2, "branch": 2, "calls": 12, "episodes": 4, "fit_batch": 2, "update_epochs": 1, "hidden": 4}
    params = roco.Params(attacker=kind, candidates=rule, steps=steps, at_least_one=seed % 2 == 0, **small)  # type: ignore[arg-type]
    attack = roco.Attack(params, PROBLEM, TorchEngine())
    out = attack([whimsical(seed)], clean, rng=rng)
    made = out.instances.matrix
    assert made is not None
    assert ((made >= 0) & (made <= matrix)).all()
    assert ((made != matrix).flatten(1).sum(1) <= steps).all()
    assert all(v.isfinite().all() for v in out.stats.values())
    for before, after in zip(matrix.double().numpy(), made.double().numpy(), strict=True):
        was, now = (tour_cost(held_karp(np.asarray(d)), matrix=d) for d in (before, after))
        assert now <= was + 1e-12
