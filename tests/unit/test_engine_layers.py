"""The native kernels of the encoder's layers against torch's own, in value and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from cnf_cli import plugins
from cnf_cli.engine import native
from cnf_cli.engine.native import NativeEngine
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies.pomo import Layer, Params, Policy

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no native engine here: {native.why_not()}")
SIZES = [
    (5, 20, 128, 8),
    (3, 50, 128, 8),
    (4, 33, 64, 8),
    (5, 7, 48, 4),
    (2, 100, 256, 16),
    (1, 1, 32, 2),
    (9, 2, 16, 1),
]


def stack(d: int, heads: int, *, layers: int = 2, factor: float = 1.0, **more: Any) -> list[Layer]:
    rng = torch.Generator().manual_seed(d)
    made = [Layer(Params(width=d, heads=heads, feed_forward=2 * d, **more)) for _ in range(layers)]
    for layer in made:
        for weight in layer.parameters():
            bound = factor * weight.shape[-1] ** -0.5 if weight.ndim > 1 else 1.0
            weight.data = (2 * torch.rand(weight.shape, generator=rng) - 1) * bound
        layer.norm1.weight.data += 1
        layer.norm2.weight.data += 1
    return made


def gradients(out: Tensor, h: Tensor, layers: Sequence[Layer], *more: Tensor) -> list[Tensor]:
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    weights = [weight for layer in layers for weight in layer.parameters()]
    return list(torch.autograd.grad(out, [h, *more, *weights], up.to(out.dtype), retain_graph=True))


def batch(b: int, n: int, d: int) -> Tensor:
    return torch.randn(b, n, d, generator=torch.Generator().manual_seed(n)).requires_grad_()


def close(ours: Tensor, torchs: Tensor, exact: Tensor, scale: float, tolerance: float = 1e-4) -> bool:
    """Within the tolerance of the exact value, relatively, or no further from it than a few times torch is."""
    far, allowed = (ours - exact).abs().max(), (torchs - exact).abs().max()
    return bool(far <= tolerance * exact.abs().max() or far <= max(10 * float(allowed), 1e-6 * scale))


@pytest.mark.parametrize("isa", native.instruction_sets())
@pytest.mark.parametrize(("b", "n", "d", "heads"), SIZES)
def test_native_layers_equal_torch(b: int, n: int, d: int, heads: int, isa: str) -> None:
    """Embeddings within 1e-4 and gradients of input and weights within 1e-4 relative of float64, on every
    instruction set and for widths, heads and node counts that fill no vector."""
    layers, h = stack(d, heads), batch(b, n, d)
    ours = NativeEngine(instruction_set=isa).through(layers, h)
    plain = TorchEngine().through(layers, h)
    own, theirs = gradients(ours, h, layers), gradients(plain, h, layers)
    for layer in layers:
        layer.double()
    h64 = h.detach().double().requires_grad_()
    exact = TorchEngine().through(layers, h64)
    assert (ours - exact).abs().max() <= max(1e-4, 4 * float((plain - exact).detach().abs().max()))
    scale = float(max(x.abs().max() for x in theirs))
    for a, c, e in zip(own, theirs, gradients(exact, h64, layers), strict=True):
        assert close(a, c, e, scale)


@pytest.mark.parametrize("isa", native.instruction_sets())
@pytest.mark.parametrize(("b", "n", "d", "heads"), SIZES)
def test_layers_that_see_distances_equal_torch(b: int, n: int, d: int, heads: int, isa: str) -> None:
    """Where attention falls off with distance, the embeddings and the gradients of input, distances, weights and of
    how fast it falls off are those of float64 within 1e-4."""
    layers, h, far = stack(d, heads, encoder_bias=True), batch(b, n, d), distances(b, n)
    ours = NativeEngine(instruction_set=isa).through(layers, h, far)
    plain = TorchEngine().through(layers, h, far)
    own, theirs = gradients(ours, h, layers, far), gradients(plain, h, layers, far)
    for layer in layers:
        layer.double()
    h64, far64 = (x.detach().double().requires_grad_() for x in (h, far))
    exact = TorchEngine().through(layers, h64, far64)
    assert (ours - exact).abs().max() <= max(1e-4, 4 * float((plain - exact).detach().abs().max()))
    scale = float(max(x.abs().max() for x in theirs))
    for a, c, e in zip(own, theirs, gradients(exact, h64, layers, far64), strict=True):
        assert close(a, c, e, scale)
    if n > 2:
        without = TorchEngine().through(stack(d, heads), h)
        assert not torch.allclose(ours, without, atol=1e-2)  # the bias is felt


def distances(b: int, n: int) -> Tensor:
    far = 2 * torch.rand(b, n, n, generator=torch.Generator().manual_seed(n + 1))
    return far.requires_grad_()


@pytest.mark.parametrize("biased", [False, True])
def test_threads_do_not_change_a_bit(biased: bool) -> None:
    """Values and gradients are the same numbers on one thread and on three."""
    layers, h = stack(64, 8, encoder_bias=biased), batch(70, 20, 64)
    far = distances(70, 20) if biased else None
    results = []
    for threads in (1, 3):
        out = NativeEngine(threads=threads).through(layers, h, far)
        results.append([out.detach(), *gradients(out, h, layers, *(() if far is None else (far,)))])
    assert all(torch.equal(a, c) for a, c in zip(*results, strict=True))


def test_large_scores_stay_finite_and_equal() -> None:
    """Attention scores in the hundreds, equal nodes and a constant batch take the safe way and agree with torch."""
    layers, h = stack(32, 4, factor=60.0), batch(3, 12, 32)
    with torch.no_grad():
        h[1, 3:] = h[1, 2]
        h[2] = 0.5
        scores = (layers[0].q(h)[..., :8] @ layers[0].k(h)[..., :8].mT) / 8**0.5
        assert scores.abs().max() > 200
        ours, plain = NativeEngine().through(layers[:1], h), TorchEngine().through(layers[:1], h)
    assert ours.isfinite().all()
    # Equal nodes are normalised rounding errors, in torch as here: only those that differ can be compared.
    assert torch.allclose(ours[:2], plain[:2], atol=1e-4)


def test_graphs_that_live_together_keep_their_own_numbers() -> None:
    """Two graphs, one of them used twice, give what each gives alone: kept values are never shared or reused early."""
    layers, engine = stack(32, 4), NativeEngine()
    first, second = batch(4, 9, 32), batch(4, 10, 32)
    alone = [gradients(engine.through(layers, h), h, layers) for h in (first, second)]
    a, c = engine.through(layers, first), engine.through(layers, second)
    together = [gradients(c, second, layers), gradients(a, first, layers), gradients(a, first, layers)]
    for found, expected in zip(together, [alone[1], alone[0], alone[0]], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_only_what_is_wanted_is_computed() -> None:
    """With frozen weights the input still gets its gradient, the same one."""
    layers, h = stack(32, 4), batch(4, 9, 32)
    expected = gradients(NativeEngine().through(layers, h), h, layers)[0]
    for layer in layers:
        layer.requires_grad_(False)
    out = NativeEngine().through(layers, h)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.autograd.grad(out, h, up)[0], expected)


@pytest.mark.parametrize("more", [{"norm": "batch"}, {"norm": "layer"}, {}])
def test_other_layers_go_through_torch(more: dict[str, str]) -> None:
    """Norms and widths without kernels give torch's numbers, bit for bit."""
    d = 32 if more else 24
    layers, h = stack(d, 4, **more), batch(3, 6, d)
    for layer in layers:
        layer.eval()
    assert torch.equal(NativeEngine().through(layers, h), TorchEngine().through(layers, h))


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_a_policy_encodes_the_same_by_either_engine(kind: str) -> None:
    """The decoder's tables agree within 1e-4 between no engine, the torch engine (exactly) and the native one."""
    module = plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=20))
    rng = torch.Generator().manual_seed(3)
    policy, inst = Policy(Params(), problem).init(rng), problem.sample(6, rng=rng)
    plain = dict(policy.encode(inst).tensors())
    same, ours = (dict(policy.encode(inst, engine=engine).tensors()) for engine in (TorchEngine(), NativeEngine()))
    assert all(torch.equal(same[name], table) for name, table in plain.items())
    assert all(torch.allclose(ours[name], table, atol=1e-4) for name, table in plain.items())
