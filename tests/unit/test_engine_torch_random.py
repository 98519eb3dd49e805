"""Counter-based random numbers against plain integer arithmetic."""

from __future__ import annotations

import torch

from cnf_cli.engine import random

MASK = (1 << 64) - 1
FROZEN = 0.8121567964553833


def naive(seed: int, start: int, step: int) -> float:
    """The documented recipe on Python's unbounded integers."""

    def fold(x: int, k: int) -> int:
        z = (x + (k + 1) * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    return (fold(fold(fold(seed & MASK, 0), start), step) >> 40) * 2.0**-24


def test_uniform_is_the_documented_hash() -> None:
    """Every draw equals the recipe in the module's docstring, for negative and extreme seeds too."""
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789])
    starts = torch.tensor([0, 1, 7, 9999])
    for step in (1, 2, 500):
        got = random.uniform(seeds, starts, step)
        assert got.dtype == torch.float32
        want = [[naive(s, p, step) for p in starts.tolist()] for s in seeds.tolist()]
        assert got.tolist() == want


def test_known_value() -> None:
    """One frozen number: other engines and later versions must reproduce it."""
    assert random.uniform(torch.tensor([1234]), torch.tensor([5]), 2).item() == naive(1234, 5, 2) == FROZEN


def test_uniform_is_uniform() -> None:
    """A quarter of a million draws fill 64 bins evenly (chi-square below its 1e-6 quantile) and are uncorrelated."""
    u = torch.stack([random.uniform(torch.arange(50), torch.arange(50), t) for t in range(100)])
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    counts = torch.histc(u, 64, 0, 1)
    expected = u.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 130
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[..., 1:], u[..., :-1])):
        assert abs(float(((a - 0.5) * (b - 0.5)).mean()) * 12) < 0.012


def test_pick_is_the_inverse_cdf_in_index_order() -> None:
    """The node is the first whose cumulative probability exceeds u."""
    p = torch.tensor([0.25, 0.0, 0.25, 0.5]).expand(1, 5, 4)
    allowed = torch.tensor([True, False, True, True]).expand(1, 5, 4)
    u = torch.tensor([[0.0, 0.2499, 0.25, 0.4999, 0.5]])
    assert random.pick(p, allowed, u).tolist() == [[0, 0, 2, 2, 3]]


def test_pick_never_takes_a_masked_node() -> None:
    """At the rounding edge, with nothing above the threshold, the last allowed node is taken."""
    p = torch.tensor([[[0.0, 0.5, 0.5, 0.0]]])
    allowed = torch.tensor([[[False, True, True, False]]])
    assert random.pick(p, allowed, torch.tensor([[1.0]])).item() == 2
    assert random.pick(p, allowed, torch.tensor([[0.0]])).item() == 1


def test_fold_gives_unrelated_seeds() -> None:
    """Folding many numbers into many seeds yields no collision."""
    folded = random.fold(torch.arange(1000)[:, None], torch.arange(64)[None, :])
    assert folded.unique().numel() == 64000
