"""The native kernels of MatNet's attention against torch's own, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnf_cli.engine import native
from cnf_cli.engine.base import Mixing
from cnf_cli.engine.native import NativeEngine
from cnf_cli.policies.matnet import MIX, attend

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no native engine here: {native.why_not()}")
SIZES = [(5, 20, 64, 8), (3, 33, 256, 16), (4, 7, 48, 4), (2, 50, 32, 8), (1, 1, 16, 2), (9, 2, 4, 1)]


def given(b: int, n: int, d: int, heads: int, *, size: float = 1.0) -> list[Tensor]:
    """Queries, keys, values, costs and the four tensors of the mixing network."""
    rng = torch.Generator().manual_seed(n)
    shapes = [(b, n, d)] * 3 + [(b, n, n), (heads, 2, MIX), (heads, MIX), (heads, MIX), (heads,)]
    return [(size * torch.randn(shape, generator=rng)).requires_grad_() for shape in shapes]


def results(tensors: list[Tensor], heads: int, flipped: bool, engine: NativeEngine | None) -> list[Tensor]:
    """The attention's value and the gradients of everything it was given."""
    q, k, v, cost, w1, b1, w2, b2 = tensors
    mixing = Mixing(heads, (w1, b1, w2, b2), flipped)
    out = engine.attend(q, k, v, cost, mixing) if engine else attend(q, k, v, cost, mixing, second_order=True)
    assert out is not None
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, up)]


@pytest.mark.parametrize("isa", native.instruction_sets())
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(("b", "n", "d", "heads"), SIZES)
def test_native_mixed_attention_equals_torch(b: int, n: int, d: int, heads: int, flipped: bool, isa: str) -> None:
    tensors = given(b, n, d, heads)
    exact = results([x.detach().double().requires_grad_() for x in tensors], heads, flipped, None)
    torchs = results(tensors, heads, flipped, None)
    ours = results(tensors, heads, flipped, NativeEngine(2, isa))
    scale = max(float(x.abs().max()) for x in exact)
    for k, (mine, theirs, right) in enumerate(zip(ours, torchs, exact, strict=True)):
        far, allowed = (mine - right).abs().max(), (theirs - right).abs().max()
        assert far <= 1e-4 * right.abs().max() or far <= max(10 * float(allowed), 1e-6 * scale), k


def test_gradients_do_not_depend_on_threads() -> None:
    tensors = given(37, 20, 64, 8)
    one, two = (results(tensors, 8, True, NativeEngine(threads)) for threads in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_large_scores_stay_finite() -> None:
    """Scores in the thousands: one node gets all of the weight."""
    tensors = given(2, 20, 64, 8, size=8.0)
    ours, torchs = results(tensors, 8, False, NativeEngine(1)), results(tensors, 8, False, None)
    exact = results([x.detach().double().requires_grad_() for x in tensors], 8, False, None)
    assert all(bool(x.isfinite().all()) for x in ours)
    assert (ours[0] - exact[0]).abs().mean() <= 10 * (torchs[0] - exact[0]).abs().mean()


def test_other_types_and_widths_are_left_to_torch() -> None:
    engine = NativeEngine(1)
    q, k, v, cost, *net = given(2, 5, 24, 4)
    assert engine.attend(q, k, v, cost, Mixing(8, tuple(net))) is None  # type: ignore[arg-type]
    q, k, v, cost, *net = (x.double() for x in given(2, 5, 16, 4))
    assert engine.attend(q, k, v, cost, Mixing(4, tuple(net))) is None  # type: ignore[arg-type]
