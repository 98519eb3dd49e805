"""Kernels look whether they are to stop every few million products, whatever they do: no clock is asked here."""

from __future__ import annotations

import pytest
import torch

from cnf_cli.engine import native
from cnf_cli.engine.native import NativeEngine
from tests.unit.native_kit import leaves, needs_native, random_case
from tests.unit.test_engine_layers import batch, stack

pytestmark = needs_native
BETWEEN = 1 << 25
"""At most so many products of two numbers between two looks: a tenth of a second at a third of a billion a second."""


def looks(work: object) -> int:
    """How often kernels look while `work` is done."""
    before = native._native.looks()
    work()  # type: ignore[operator]
    return int(native._native.looks() - before)


@pytest.mark.parametrize("depot", [False, True], ids=["tsp", "cvrp"])
def test_decoders_look_often_enough(depot: bool) -> None:
    """The tables, a rollout's steps, its score and the gradient: looks grow with the products, few rollouts or many."""
    n, d, engine = 1200, 32, NativeEngine(threads=1)
    tables, world = random_case(1, n, d=d, depot=depot)
    few = type(world)(world.starts[:2], world.demand, world.capacity)
    pairs = n * n * d
    assert looks(lambda: engine.rollout(tables, few)) >= 2 * pairs / BETWEEN > 2
    tours = engine.rollout(tables, few)
    assert looks(lambda: engine.score(tables, few, tours, torch.ones(1, 2))) >= 7 * pairs / BETWEEN
    local, _ = leaves(tables)
    assert looks(lambda: engine.score(local, few, tours, torch.ones(1, 2))) >= 10 * pairs / BETWEEN


def test_encoders_look_often_enough() -> None:
    """Attention between all nodes and the maps of each node, forward and backward."""
    n, d = 1200, 64
    layers, h, engine = stack(d, 8), batch(1, n, d), NativeEngine(threads=1)
    products = 2 * (2 * n * n * d + 8 * n * d * d)
    out = engine.through(layers, h)
    assert looks(lambda: engine.through(layers, h)) >= products / BETWEEN > 10
    assert looks(lambda: out.sum().backward()) >= 2.5 * products / BETWEEN


def test_mixed_attention_looks_often_enough() -> None:
    """MatNet's attention, whose small network sees every pair of nodes."""
    n, d, heads, rng = 600, 16, 2, torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, d, generator=rng) for _ in range(3))
    x = native._native.HIDDEN
    net = [torch.randn(*shape, generator=rng) for shape in ((heads, 2, x), (heads, x), (heads, x), (heads,))]
    cost, out = torch.rand(1, n, n, generator=rng), torch.empty(1, n, d)
    call = (q, k, v, cost, False, net, heads, 1, out, None, [], None, 1, "")
    assert looks(lambda: native._native.mixed(*call)) >= n * n * (2 * d + 3 * x * heads) / BETWEEN > 1
