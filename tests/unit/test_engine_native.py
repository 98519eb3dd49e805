"""The native engine gives the torch engine's tours, log-probabilities and gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cnf_cli.engine import get_engine, random
from cnf_cli.engine.base import Tables, World
from cnf_cli.engine.native import NativeEngine, instruction_sets
from cnf_cli.engine.torch import TorchEngine
from tests.unit.native_kit import (
    TIE,
    differences,
    leaves,
    needs_native,
    policy_case,
    random_case,
    relative,
    trained_case,
)

pytestmark = needs_native
SIZES = [(128, 8), (64, 8), (48, 6), (256, 16), (32, 1)]
"""Three widths with kernels of their own, an odd one and one head: the general path."""


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@pytest.mark.parametrize(("n", "count"), [(20, 100), (50, 100), (100, 20)])
def test_greedy_tours_equal(kind: str, n: int, count: int) -> None:
    """Greedy tours are the torch engine's, but for moves whose scores tie within 1e-5; few do."""
    assert _parted(f"{kind}{n}", *policy_case(kind, count, n)) <= 0.01 * count * n


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
@pytest.mark.parametrize("n", [20, 50, 100])
def test_greedy_tours_equal_on_a_thousand(shared: Path, kind: str, n: int) -> None:
    """The same with published networks on 1000 instances each, in parts of 50."""
    cases = (trained_case(shared, kind, 50, n, seed) for seed in range(20))
    assert sum(_parted(f"{kind}{n}", *case) for case in cases) <= 0.01 * 1000 * n


def _parted(what: str, tables: Tables, world: World) -> int:
    gaps = differences(tables, world, NativeEngine().rollout(tables, world), TorchEngine().rollout(tables, world))
    print(f"{what}: {len(gaps)} of {len(tables.key) * len(world.starts)} greedy rollouts part at a tie")
    assert all(gap <= TIE for gap in gaps)
    return len(gaps)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("depot", [False, True])
@pytest.mark.parametrize(("d", "heads"), SIZES)
@pytest.mark.parametrize("isa", instruction_sets())
def test_every_instruction_set_and_width(isa: str, d: int, heads: int, depot: bool, biased: bool) -> None:
    """Greedy and sampled tours, log p and gradients agree for every kernel and every width, with and without biases
    by distance."""
    tables, world = random_case(4, 21, d=d, heads=heads, depot=depot, biased=biased)
    ours, theirs = NativeEngine(instruction_set=isa), TorchEngine()
    assert all(gap <= TIE for gap in _gaps(ours, theirs, tables, world))
    seeds = torch.arange(4) * 1234567
    tours = theirs.rollout(tables, world, seeds)
    drawn = ours.rollout(tables, world, seeds)
    # A draw within rounding of a boundary may fall on either side; such edges are rare.
    assert drawn.shape == tours.shape
    assert int((drawn != tours).any(-1).sum()) <= 1
    weight = torch.randn(tours.shape[:2], generator=torch.Generator().manual_seed(1))
    _compare(ours, tables, world, tours, weight)


@pytest.mark.parametrize("candidates", [1, 5, 40])
@pytest.mark.parametrize("depot", [False, True])
@pytest.mark.parametrize("isa", instruction_sets())
def test_candidates_are_the_same_in_both_engines(isa: str, depot: bool, candidates: int) -> None:
    """With moves to the nearest nodes only, tours, log p and gradients agree; those of tours that go elsewhere too."""
    tables, world = random_case(4, 21, d=64, heads=8, depot=depot, biased=True, candidates=candidates)
    ours, theirs = NativeEngine(instruction_set=isa), TorchEngine()
    assert all(gap <= TIE for gap in _gaps(ours, theirs, tables, world))
    seeds = torch.arange(4) * 1234567
    tours, log_prob = ours.sample(tables, world, seeds)
    assert int((theirs.rollout(tables, world, seeds) != tours).any(-1).sum()) <= 1
    everywhere = theirs.rollout(replace(tables, nearest=None, candidates=0), world, seeds)
    weight = torch.randn(tours.shape[:2], generator=torch.Generator().manual_seed(1))
    for given in (everywhere,) if candidates == 1 and not depot else (everywhere, tours):
        _compare(ours, tables, world, given, weight)
    assert (log_prob - theirs.score(tables, world, tours, 0 * weight)[1]).abs().max() < 1e-3
    if candidates == 40:  # more than there are nodes
        assert torch.equal(tours, ours.rollout(replace(tables, nearest=None, candidates=0), world, seeds))
    if candidates == 1 and not depot:
        assert log_prob.abs().max() == 0


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("depot", [False, True])
@pytest.mark.parametrize("isa", instruction_sets())
def test_samples_come_with_their_log_probability(isa: str, depot: bool, biased: bool) -> None:
    """The tours are those of `rollout`; the log-probability is what scoring them gives, within 1e-4."""
    tables, world = random_case(4, 21, d=64, heads=8, depot=depot, biased=biased)
    engine, seeds = NativeEngine(instruction_set=isa), torch.arange(4) * 77
    tours, log_prob = engine.sample(tables, world, seeds)
    assert torch.equal(tours, engine.rollout(tables, world, seeds))
    exact = tables.with_(**{name: x.double() for name, x in tables.tensors()})
    expected = TorchEngine().score(exact, world, tours, torch.zeros(tours.shape[:2], dtype=torch.float64))[1]
    assert (log_prob - expected).abs().max() < 1e-4
    torchs = TorchEngine().sample(tables, world, seeds)[1]
    assert torchs.shape == log_prob.shape
    assert (torchs - expected).abs().median() < 1e-4


def _gaps(ours: NativeEngine, theirs: TorchEngine, tables: Tables, world: World) -> list[float]:
    return differences(tables, world, ours.rollout(tables, world), theirs.rollout(tables, world))


def _compare(
    ours: NativeEngine, tables: Tables, world: World, tours: torch.Tensor, weight: torch.Tensor, tolerance: float = 1e-4
) -> None:
    """log p within 1e-4 absolute, gradients within 1e-4 relative of the torch engine in double precision."""
    exact = tables.with_(**{name: x.double() for name, x in tables.tensors()})
    scale = torch.arange(1, len(weight) + 1)
    results = []
    for engine, given in ((ours, tables), (TorchEngine(), exact)):
        local, named = leaves(given)
        total, log_prob = engine.score(local, world, tours, weight.to(given.key.dtype))
        (total * scale).sum().backward()
        results.append((total.detach(), log_prob, named))
    (total, log_prob, mine), (total_2, log_prob_2, other) = results
    assert torch.isfinite(log_prob).all()
    assert float((log_prob - log_prob_2).abs().max()) <= 1e-4
    assert relative(total, total_2) <= 1e-4
    assert not log_prob.requires_grad
    for name, leaf in other.items():
        assert leaf.grad is not None
        assert relative(mine[name].grad, leaf.grad) <= tolerance, name


@pytest.mark.parametrize(("kind", "n"), [("tsp", 20), ("tsp", 100), ("cvrp", 20), ("cvrp", 50)])
@pytest.mark.parametrize(("width", "heads"), [(128, 8), (64, 8), (48, 6)])
def test_gradients_of_sampled_tours(kind: str, n: int, width: int, heads: int) -> None:
    """A network's sampled tours have the same log p and gradients as in torch."""
    tables, world = policy_case(kind, 3, n, width=width, heads=heads)
    tours = NativeEngine().rollout(tables, world, torch.tensor([3, 5, -7]))
    weight = torch.randn(tours.shape[:2], generator=torch.Generator().manual_seed(2))
    _compare(NativeEngine(), tables, world, tours, weight)


def test_without_gradients_the_values_are_the_same() -> None:
    """score under no_grad gives the values that it gives with gradients, and no graph."""
    tables, world = random_case(2, 12)
    tours = NativeEngine().rollout(tables, world, torch.arange(2))
    weight = torch.ones(2, 12)
    with_graph = NativeEngine().score(leaves(tables)[0], world, tours, weight)
    plain = NativeEngine().score(tables, world, tours, weight)
    assert all(torch.equal(a.detach(), b) for a, b in zip(with_graph, plain, strict=True))
    assert with_graph[0].requires_grad
    assert not plain[0].requires_grad


@pytest.mark.parametrize("depot", [False, True])
def test_draws_follow_the_softmax(depot: bool) -> None:
    """First moves of 20,000 seeds: chi-square against the exact probabilities below its 99.9% point."""
    tables, world = random_case(1, 9, depot=depot, scale=1.0)
    world = World(world.starts[2:3], world.demand)
    count, at = 20_000, 2 if depot else 1
    many = tables.with_(**{k: x if x.ndim == 1 else x.expand(count, *x.shape[1:]) for k, x in tables.tensors()})
    rules = World(world.starts, None if world.demand is None else world.demand.expand(count, -1))
    tours = NativeEngine().rollout(many, rules, random.seeds_from(torch.Generator().manual_seed(4), count))
    moves = torch.bincount(tours[:, 0, at], minlength=9).double()
    expected = count * _first_move(tables, world)
    kept = expected > 5
    statistic = float(((moves - expected).square() / expected)[kept].sum())
    freedom = int(kept.sum()) - 1
    assert freedom >= 3
    assert statistic < {3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1}[freedom]
    assert moves[expected == 0].sum() == 0


def _first_move(tables: Tables, world: World) -> torch.Tensor:
    from cnf_cli.engine.torch import State, _split

    state, heads = State(tables, world), _split(tables)
    allowed = state.allowed()
    return heads.log_softmax(heads.scores(state.place, allowed), allowed).exp()[0, 0].double()


def test_auto_takes_the_native_engine() -> None:
    """On a CPU where the extension is built, "auto" and "native" are this engine; again and again."""
    for _ in range(2):
        assert get_engine("auto").name == "native"
        assert get_engine("native").name == "native"
        assert get_engine("torch").name == "torch"


def test_many_heads_go_through_torch() -> None:
    """Tables with more heads than the kernels hold still give the torch engine's results."""
    tables, world = random_case(2, 8, d=96, heads=32)
    assert torch.equal(NativeEngine().rollout(tables, world), TorchEngine().rollout(tables, world))
    tours = NativeEngine().rollout(tables, world, torch.arange(2))
    assert torch.equal(tours, TorchEngine().rollout(tables, world, torch.arange(2)))
