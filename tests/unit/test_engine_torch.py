"""The reference engine against a naive decoder written here from the published formulas."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from cnf_cli.engine import get_engine
from cnf_cli.engine import torch as engine_torch
from cnf_cli.engine.base import Tables, World
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import DataError, MissingDependency

D, HEADS, CLIP = 16, 4, 10.0


@dataclass
class Naive:
    """Decoder weights and node embeddings, nothing folded."""

    h: Tensor
    wq_last: Tensor
    wk: Tensor
    wv: Tensor
    combine: Tensor
    combine_bias: Tensor
    wq_first: Tensor | None = None
    wq_load: Tensor | None = None
    near: Tensor | None = None
    space: Tensor | None = None
    fade: Tensor | None = None

    def tables(self) -> Tables:
        return Tables(
            last=self.h @ self.wq_last.T,
            key=self.h @ self.wk.T,
            value=self.h @ self.wv.T,
            pointer=self.h @ self.combine,
            bias=self.h @ self.combine_bias,
            heads=HEADS,
            clip=CLIP,
            first=None if self.wq_first is None else self.h @ self.wq_first.T,
            load=self.wq_load,
            near=self.near,
            space=self.space,
            fade=self.fade,
        )

    def log_softmax(self, i: int, start: int, at: int, load: Tensor | None, mask: list[bool]) -> Tensor:
        """One step of one rollout, one head at a time."""
        h = self.h[i]
        query = self.wq_last @ h[at]
        if self.wq_first is not None:
            query = query + self.wq_first @ h[start]
        if self.wq_load is not None:
            query = query + load * self.wq_load
        closed = torch.tensor(mask)
        width = D // HEADS
        parts = []
        for head in range(HEADS):
            cut = slice(head * width, (head + 1) * width)
            score = (h @ self.wk[cut].T) @ query[cut] / math.sqrt(width)
            if self.space is not None and self.fade is not None:
                score = score - self.fade[head] * self.space[i, at]
            weight = score.masked_fill(closed, -torch.inf).softmax(-1)
            parts.append(weight @ (h @ self.wv[cut].T))
        glimpse = self.combine @ torch.cat(parts) + self.combine_bias
        pointed = h @ glimpse / math.sqrt(D)
        logit = CLIP * torch.tanh(pointed if self.near is None else pointed + self.near[i, at])
        return logit.masked_fill(closed, -torch.inf).log_softmax(-1)

    def log_prob(self, i: int, tour: list[int], demand: Tensor | None) -> Tensor:
        """log p of one tour, step by step, with the masks of a naive environment."""
        total = self.h.new_zeros(())
        n = self.h.shape[1]
        forced = 1 if demand is None else 2
        visited, load, at = set(), None, tour[0]
        if demand is None:
            visited.add(tour[0])
        else:
            load = torch.ones((), dtype=demand.dtype)
        for t in range(1, len(tour)):
            if t >= forced:
                served = len(visited) == n - 1
                mask = [j in visited for j in range(n)]
                if demand is not None:
                    mask = [mask[j] or bool(load + 1e-5 < demand[i, j]) for j in range(n)]
                    mask[0] = at == 0 and not served
                start = tour[0] if demand is None else tour[1]
                total = total + self.log_softmax(i, start, at, load, mask)[tour[t]]
            at = tour[t]
            if demand is not None:
                load = torch.ones((), dtype=demand.dtype) if at == 0 else load - demand[i, at]
            if demand is None or at != 0:
                visited.add(at)
        return total


def make(
    kind: str, dtype: torch.dtype, b: int = 3, n: int = 7, seed: int = 0, *, biased: bool = False
) -> tuple[Naive, World]:
    rng = torch.Generator().manual_seed(seed)

    def weight(*shape: int, scale: float = 0.4) -> Tensor:
        return (torch.randn(*shape, generator=rng, dtype=torch.float64) * scale).to(dtype).requires_grad_()

    decoder = Naive(weight(b, n, D, scale=1.0), *(weight(D, D) for _ in range(4)), weight(D))
    if biased:
        decoder.near, decoder.space, decoder.fade = (
            weight(b, n, n),
            weight(b, n, n, scale=1.0),
            weight(HEADS, scale=1.0),
        )
    if kind == "tsp":
        decoder.wq_first = weight(D, D)
        return decoder, World(torch.arange(n))
    decoder.wq_load = weight(D, scale=1.0)
    demand = torch.randint(1, 10, (b, n), generator=rng).to(dtype) / 20
    demand[:, 0] = 0
    return decoder, World(torch.arange(1, n), demand)


KINDS = pytest.mark.parametrize("kind", ["tsp", "cvrp"])
BIASED = pytest.mark.parametrize("biased", [False, True])
"""Without and with what distances say: in the pointer and in the glimpse."""


@KINDS
@pytest.mark.parametrize("sampled", [False, True])
def test_rollouts_obey_the_rules(kind: str, sampled: bool) -> None:
    """Every rollout begins at its start, visits each node once, and never carries more than the capacity."""
    decoder, world = make(kind, torch.float32, b=4, n=9)
    seeds = torch.arange(4) if sampled else None
    tours = TorchEngine().rollout(decoder.tables(), world, seeds)
    first = 0 if kind == "tsp" else 1
    assert torch.equal(tours[..., first], world.starts.expand(4, -1))
    for i in range(4):
        for tour in tours[i].tolist():
            assert sorted(x for x in tour if kind == "tsp" or x) == list(range(first, 9))
            if world.demand is not None:
                assert tour[0] == tour[-1] == 0
                carried = 0.0
                for node in tour:
                    carried = carried + float(world.demand[i, node]) if node else 0.0
                    assert carried <= 1 + 1e-4


@KINDS
@BIASED
@pytest.mark.parametrize("chunk", [1, 1 << 23])
def test_log_probs_equal_the_unfolded_decoder(
    kind: str, biased: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay in chunks of any size gives the log-probability of the published, unfolded decoder."""
    monkeypatch.setattr(engine_torch, "_CHUNK", chunk)
    decoder, world = make(kind, torch.float64, biased=biased)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([1, 2, 3]))
    want = torch.stack(
        [torch.stack([decoder.log_prob(i, tour, world.demand) for tour in tours[i].tolist()]) for i in range(3)]
    )
    tables = decoder.tables()
    _, scored = engine.score(tables, world, tours, torch.ones(tours.shape[:2], dtype=torch.float64))
    assert torch.allclose(engine.log_prob(tables, world, tours), want, rtol=1e-10)
    assert torch.allclose(scored, want, rtol=1e-10)
    assert not scored.requires_grad


@KINDS
@BIASED
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_score_gradient_equals_step_by_step_autograd(
    kind: str, biased: bool, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients collected chunk by chunk equal plain autograd through every step, for any upstream gradient."""
    monkeypatch.setattr(engine_torch, "_CHUNK", 2000)
    decoder, world = make(kind, dtype, biased=biased)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([4, 5, 6]))
    rng = torch.Generator().manual_seed(9)
    weight = torch.randn(tours.shape[:2], generator=rng).to(dtype)
    outer = torch.randn(len(tours), generator=rng).to(dtype)
    value, _ = engine.score(decoder.tables(), world, tours, weight)
    leaves = [v for v in vars(decoder).values() if v is not None]
    got = torch.autograd.grad((outer * value).sum(), leaves)
    plain = sum(
        outer[i] * weight[i, p] * decoder.log_prob(i, tours[i, p].tolist(), world.demand)
        for i in range(tours.shape[0])
        for p in range(tours.shape[1])
    )
    for a, b in zip(got, torch.autograd.grad(plain, leaves), strict=True):
        assert (a - b).norm() <= tolerance * b.norm()


@KINDS
def test_greedy_takes_the_most_likely_move(kind: str) -> None:
    """At each step of a greedy tour no other allowed move is more likely."""
    decoder, world = make(kind, torch.float64)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world)
    state = engine_torch.State(decoder.tables(), world)
    heads = engine_torch._split(decoder.tables())
    for t in range(len(state.forced), tours.shape[-1]):
        allowed = state.allowed()
        log_p = heads.log_softmax(heads.scores(state.place, allowed), allowed)
        chosen = log_p.gather(-1, tours[:, :, t, None])[..., 0]
        assert torch.all(chosen >= log_p.amax(-1) - 1e-12)
        state.move(tours[:, :, t])


@KINDS
def test_draws_do_not_depend_on_the_company(kind: str) -> None:
    """A sampled tour is the same whichever other instances and starts are rolled out beside it."""
    decoder, world = make(kind, torch.float64, b=3, n=8)
    engine, seeds = TorchEngine(), torch.tensor([11, 12, 13])
    tables = decoder.tables()
    tours = engine.rollout(tables, world, seeds)
    row = {k: v[1:2] if v.ndim > 1 else v for k, v in tables.tensors()}
    alone = World(world.starts[2:4], None if world.demand is None else world.demand[1:2])
    some = engine.rollout(tables.with_(**row), alone, seeds[1:2])
    assert torch.equal(some[0], tours[1, 2:4, : some.shape[-1]])
    other = engine.rollout(tables, world, seeds + 1)
    assert other.shape != tours.shape or not torch.equal(other, tours)


@KINDS
def test_sampling_follows_the_policy(kind: str) -> None:
    """Over many seeds, the share of each second choice matches its probability."""
    decoder, world = make(kind, torch.float32, b=1, n=5)
    engine, count = TorchEngine(), 4000
    wide = {k: v.detach().expand(count, *v.shape[1:]) if v.ndim > 1 else v for k, v in decoder.tables().tensors()}
    tables = decoder.tables().with_(**wide)
    demand = None if world.demand is None else world.demand.expand(count, -1)
    tours = engine.rollout(tables, World(world.starts[:1], demand), torch.arange(count))
    state = engine_torch.State(decoder.tables(), World(world.starts[:1], world.demand))
    allowed = state.allowed()
    heads = engine_torch._split(decoder.tables())
    want = heads.log_softmax(heads.scores(state.place, allowed), allowed).exp()[0, 0]
    share = torch.bincount(tours[:, 0, len(state.forced)], minlength=5) / count
    assert (share - want).abs().max() < 0.03


@KINDS
def test_second_derivatives_exist(kind: str) -> None:
    """A penalty on the gradient's norm can itself be differentiated, and numerically right."""
    decoder, world = make(kind, torch.float64, b=1, n=4)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([3]))

    def penalty(h: Tensor) -> Tensor:
        decoder.h = h
        value = engine.log_prob(decoder.tables(), world, tours).sum()
        return torch.autograd.grad(value, h, create_graph=True)[0].square().sum()

    h = decoder.h.detach().requires_grad_()
    direction = torch.randn(h.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = (torch.autograd.grad(penalty(h), h)[0] * direction).sum()
    ends = [penalty((h.detach() + s * direction).requires_grad_()).detach() for s in (1e-6, -1e-6)]
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-4)


def test_log_prob_differentiates_through_the_load() -> None:
    """A demand changes later loads and so the log-probability: the derivative equals a finite difference."""
    decoder, world = make("cvrp", torch.float64, b=1, n=5)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([3]))
    assert world.demand is not None
    demand = world.demand.clone().requires_grad_()
    value = engine.log_prob(decoder.tables(), World(world.starts, demand), tours).sum()
    slope = torch.autograd.grad(value, demand)[0][0, 2]
    step = torch.zeros_like(world.demand)
    step[0, 2] = 1e-6
    ends = [
        engine.log_prob(decoder.tables(), World(world.starts, world.demand + s), tours).sum() for s in (step, -step)
    ]
    assert float(slope.detach()) == pytest.approx(float((ends[0] - ends[1]).detach()) / 2e-6, rel=1e-5)
    assert slope != 0


def test_extra_padding_changes_nothing() -> None:
    """Depot moves after the end have probability 1 and no gradient."""
    decoder, world = make("cvrp", torch.float64)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([4, 5, 6]))
    longer = torch.cat([tours, torch.zeros_like(tours[..., :3])], -1)
    weight = torch.ones(tours.shape[:2], dtype=torch.float64)
    values = [engine.score(decoder.tables(), world, t, weight)[0].sum() for t in (tours, longer)]
    assert torch.allclose(values[0], values[1], rtol=1e-14)
    grads = [torch.autograd.grad(v, decoder.h)[0] for v in values]
    assert torch.allclose(grads[0], grads[1], rtol=1e-12, atol=1e-14)


def test_impossible_demand_is_an_error_not_a_hang() -> None:
    """A customer who needs more than a full vehicle stops the rollout with a message."""
    decoder, world = make("cvrp", torch.float32)
    assert world.demand is not None
    demand = world.demand.clone()
    demand[0, 3] = 1.2
    with pytest.raises(DataError, match="larger than the vehicle's capacity"):
        TorchEngine().rollout(decoder.tables(), World(world.starts[:1], demand))


@KINDS
def test_score_without_gradient_is_the_same_value(kind: str) -> None:
    """Under no_grad the weighted sum and the log-probabilities are unchanged."""
    decoder, world = make(kind, torch.float64)
    engine = TorchEngine()
    tours = engine.rollout(decoder.tables(), world, torch.tensor([4, 5, 6]))
    weight = torch.linspace(-1, 1, tours[..., 0].numel(), dtype=torch.float64).view(tours.shape[:2])
    value, log_prob = engine.score(decoder.tables(), world, tours, weight)
    with torch.no_grad():
        again, again_log_prob = engine.score(decoder.tables(), world, tours, weight)
    assert torch.allclose(value, again, rtol=1e-13)
    assert torch.allclose(log_prob, again_log_prob, rtol=1e-13)


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch` is always there; `native` without its library says how to get it; `auto` then falls back to torch."""
    assert get_engine("torch", "cuda").name == "torch"
    assert get_engine("auto", "cuda").name == "torch"
    with pytest.raises(MissingDependency, match="CPU"):
        get_engine("native", "cuda")
    monkeypatch.setattr("cnf_cli.engine._if_built", lambda threads: None)
    assert get_engine("auto", "cpu").name == "torch"
    with pytest.raises(MissingDependency) as caught:
        get_engine("native", "cpu")
    assert "compiler" in (caught.value.hint or "")


class Box:
    """A saved tensor whose end can be noticed."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_peak(kind: str, n: int, work: str) -> int:
    """The most numbers autograd held at once while the log-probability of 4 rollouts was computed."""
    decoder, _ = make(kind, torch.float32, b=1, n=n)
    demand = torch.full((1, n), 0.1) * (torch.arange(n) > 0) if kind == "cvrp" else None
    world, engine, tables = World(torch.arange(1, 5), demand), TorchEngine(), decoder.tables()
    tours = engine.rollout(tables, world)
    live, peak = 0, 0

    def freed(size: int) -> None:
        nonlocal live
        live -= size

    def pack(tensor: Tensor) -> Box:
        nonlocal live, peak
        box = Box(tensor)
        live += tensor.numel()
        peak = max(peak, live)
        weakref.finalize(box, freed, tensor.numel())
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        if work == "score":
            engine.score(tables, world, tours, torch.ones(1, 4))
        else:
            engine.log_prob(tables, world, tours)
    return peak


@KINDS
def test_replay_memory_does_not_grow_with_the_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 times the nodes, score holds about 4 times as much, where the whole graph of log_prob holds 16 times."""
    monkeypatch.setattr(engine_torch, "_CHUNK", 1)
    few, many = (saved_peak(kind, n, "score") for n in (12, 48))
    assert many < 5 * few
    few, many = (saved_peak(kind, n, "log_prob") for n in (12, 48))
    assert many > 8 * few
