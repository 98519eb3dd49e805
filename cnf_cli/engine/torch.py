"""The readable reference engine: step-by-step rollouts and teacher-forced replay in plain torch, on any device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from cnf_cli.engine import random
from cnf_cli.engine.base import Layer, Mixing, Tables, World, demand_too_large, not_finite

SHARED = ("load", "fade")
"""Tables that all instances have in common."""
_CHUNK = 1 << 23
"""Attention weights held at once while replaying; a few of these arrays make up the peak memory."""


class TorchEngine:
    """Implements `Engine` with torch operations only."""

    name = "torch"

    def through(
        self, layers: Sequence[Layer], h: Float[Tensor, "b n d"], space: Float[Tensor, "b n n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """One layer after the other."""
        for layer in layers:
            h = layer(h, space)
        return h

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cost: Tensor, mixing: Mixing) -> Tensor | None:
        """The policy's own torch code is the way here."""
        return None

    @torch.no_grad()
    def rollout(self, tables: Tables, world: World, seeds: Int[Tensor, " b"] | None = None) -> Int[Tensor, "b p t"]:
        """Tours for every start: greedy without seeds, else sampled by `engine.random`."""
        heads, state = _split(tables), State(tables, world)
        stream = None if seeds is None else random.streams(seeds.to(state.visited.device), world.starts)
        b, p, n = state.visited.shape
        # One array for all steps: small tensors kept between the large ones of each step would fragment the heap.
        tours = torch.zeros(
            b, p, n if world.demand is None else 2 * n + 1, dtype=torch.int64, device=state.visited.device
        )
        step = len(state.forced)
        tours[..., :step] = torch.stack(state.forced, -1)
        broken = torch.zeros((), dtype=torch.bool, device=state.visited.device)
        while not state.done():
            allowed = state.allowed()
            score = heads.scores(state.place, allowed)
            # Asked for at the end, so that a GPU need not wait at every step; until then every move is legal.
            finite = score.isfinite()
            broken |= (allowed & ~finite).any()
            score = score.where(finite, 0.0)
            if stream is None:
                # tanh and clipping keep the order, so the best raw score is the best move; ties go to the lowest index.
                node = score.masked_fill(~allowed, -torch.inf).argmax(-1)
            else:
                node = random.pick(heads.log_softmax(score, allowed).exp(), allowed, random.draw(stream, step))
            state.move(node)
            tours[..., step] = node
            step += 1
        if broken:
            raise not_finite(tables)
        return tours[..., :step].contiguous()

    @torch.no_grad()
    def sample(
        self, tables: Tables, world: World, seeds: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b p t"], Float[Tensor, "b p"]]:
        """(sampled tours, their log-probabilities)."""
        tours = self.rollout(tables, world, seeds)
        nothing = tables.key.new_zeros(len(tables.key), len(world.starts))
        return tours, self.score(tables, world, tours, nothing)[1]

    def score(
        self, tables: Tables, world: World, tours: Int[Tensor, "b p t"], weight: Float[Tensor, "b p"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """(sum_p weight_p log p(tour_p), differentiable once with respect to the tables; every log p, detached).

        The tables' gradients are collected chunk by chunk in the forward pass, so memory does not grow with the steps.
        """
        named = dict(tables.tensors())
        if torch.is_grad_enabled() and any(t.requires_grad for t in named.values()):
            values: tuple[Tensor, Tensor] = _Score.apply(  # type: ignore[no-untyped-call]
                tables, world, tours, weight.detach(), tuple(named), *named.values()
            )
            return values
        with torch.no_grad():
            log_prob = self.log_prob(tables, world, tours)
        return (weight * log_prob).sum(-1), log_prob

    def log_prob(self, tables: Tables, world: World, tours: Int[Tensor, "b p t"]) -> Float[Tensor, "b p"]:
        """log p(tour) with the whole graph kept: any order of derivative, also through `world.demand` into the load."""
        total = torch.zeros(tours.shape[:2], dtype=tables.key.dtype, device=tables.key.device)
        for part in _replay(tables, world, tours):
            total = total + part
        return total


class _Score(torch.autograd.Function):
    """The weighted log-probability whose gradient was already taken when it was computed."""

    @staticmethod
    def forward(
        ctx: Any, tables: Tables, world: World, tours: Tensor, weight: Tensor, names: tuple[str, ...], *values: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Each instance gets its own copy of the shared vectors, so that their gradients can be scaled on their own.
        own = [v.detach().expand(len(tours), -1) if v.ndim == 1 else v.detach() for v in values]
        leaves = {
            name: v.clone().requires_grad_(need)
            for name, v, need in zip(names, own, ctx.needs_input_grad[5:], strict=True)
        }
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        shared = {name: leaves.pop(name) for name in SHARED if name in leaves}
        local = tables.with_(**leaves)
        total = torch.zeros(tours.shape[:2], dtype=weight.dtype, device=weight.device)
        sums = [torch.zeros_like(leaf) for leaf in wanted]
        with torch.enable_grad():
            for part in _replay(local, world, tours, shared):
                total += part.detach()
                if part.requires_grad:
                    grads = torch.autograd.grad((weight * part).sum(), wanted, allow_unused=True)
                    for kept, grad in zip(sums, grads, strict=True):
                        if grad is not None:
                            kept += grad
        ctx.save_for_backward(*sums)
        ctx.shared = [v.ndim == 1 for v in values]
        ctx.mark_non_differentiable(total)
        return (weight * total).sum(-1), total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _unused: Tensor) -> tuple[Tensor | None, ...]:
        sums = iter(ctx.saved_tensors)
        out: list[Tensor | None] = []
        for need, shared in zip(ctx.needs_input_grad[5:], ctx.shared, strict=True):
            if not need:
                out.append(None)
                continue
            kept = next(sums)
            scaled = kept * grad.reshape(-1, *[1] * (kept.ndim - 1))
            out.append(scaled.sum(0) if shared else scaled)
        return (None, None, None, None, None, *out)


def _replay(
    tables: Tables, world: World, tours: Int[Tensor, "b p t"], shared: Mapping[str, Tensor] | None = None
) -> Iterator[Float[Tensor, "b p"]]:
    """Parts of log p(tour), a chunk of steps each, that sum to the whole; `shared` replaces the tables' vectors."""
    heads, state = _split(tables, shared or {}), State(tables, world)
    b, p, t = tours.shape
    n = tables.key.shape[1]
    steps = max(1, _CHUNK // max(1, b * p * n * tables.heads))
    begin, end = len(state.forced), t if world.demand is not None else t - 1  # a TSP tour's last move has no choice
    for low in range(begin, end, steps):
        wide = min(steps, end - low)
        seen, allowed = [], []
        for step in range(low, low + wide):
            seen.append(state.place)
            allowed.append(state.allowed())
            state.move(tours[:, :, step])
        # One decoder call for the whole chunk: its steps lie side by side on the rollout axis.
        left = None if seen[0].load is None else torch.cat([s.load for s in seen if s.load is not None], 1)
        place = Place(torch.cat([s.start for s in seen], 1), torch.cat([s.at for s in seen], 1), left)
        mask = torch.cat(allowed, 1)
        chosen = torch.cat(tours[:, :, low : low + wide].unbind(-1), 1)
        if tables.nearest is not None:
            mask = mask.scatter(-1, chosen[..., None].long(), True)
        scores = heads.scores(place, mask)
        if (mask & ~scores.detach().isfinite()).any():
            raise not_finite(tables)
        log_p = heads.log_softmax(scores, mask)
        yield log_p.gather(-1, chosen[..., None].long()).view(b, wide, p).sum(1)


class Place(NamedTuple):
    """What a decoder query depends on: where each rollout began, where it stands, what share it can still carry."""

    start: Int[Tensor, "b p"]
    at: Int[Tensor, "b p"]
    load: Float[Tensor, "b p"] | None


class State:
    """Where every rollout stands and where it may go next."""

    def __init__(self, tables: Tables, world: World) -> None:
        """All rollouts stand on their start, having come from the depot where there is one."""
        b, n, _ = tables.key.shape
        device = tables.key.device
        start = world.starts.to(device).long().expand(b, -1)
        wide = torch.promote_types(tables.key.dtype, torch.float32)
        self.demand = None if world.demand is None else world.demand.to(wide)
        self.loads = None if world.demand is None else world.loads()
        self.carried = torch.zeros(start.shape, dtype=torch.float64, device=device)
        self.place = Place(start, start, None if self.demand is None else self.demand.new_ones(start.shape))
        self.visited = torch.zeros(b, start.shape[1], n, dtype=torch.bool, device=device)
        self.nearest, self.candidates = tables.nearest, tables.candidates
        self.moves = 0
        if self.loads is not None and not (self.loads.demand <= self.loads.limit[:, None]).all():
            raise demand_too_large()
        self.forced = (start,) if self.demand is None else (torch.zeros_like(start), start)
        """The moves that are made without asking the policy."""
        self.move(start)

    def move(self, node: Int[Tensor, "b p"]) -> None:
        """Every rollout goes to its node; loads shrink by the demand there and are full again at the depot."""
        node, load = node.long(), self.place.load
        self.moves += 1
        self.visited.scatter_(-1, node[..., None], True)
        if self.demand is not None and load is not None:
            left = load - self.demand.gather(1, node)
            load = torch.where(node == 0, torch.ones_like(left), left)
        if self.loads is not None:
            self.carried = (self.carried + self.loads.demand.gather(1, node)).masked_fill(node == 0, 0.0)
        self.place = Place(self.place.start, node, load)

    def allowed(self) -> Bool[Tensor, "b p n"]:
        """The nodes each rollout may visit next; never empty, since every demand fits into an empty vehicle."""
        allowed = self._fitting()
        return allowed if self.nearest is None else self._near(allowed, self.nearest)

    def _near(self, allowed: Bool[Tensor, "b p n"], nearest: Int[Tensor, "b n n"]) -> Bool[Tensor, "b p n"]:
        """The nearest of them only; the depot stays as it is."""
        order, home = _rows(nearest, self.place.at), allowed[..., :1].clone()
        if self.loads is not None:
            allowed = torch.cat([torch.zeros_like(home), allowed[..., 1:]], -1)
        ranked = allowed.gather(-1, order)
        within = torch.zeros_like(allowed).scatter(-1, order, ranked & (ranked.cumsum(-1) <= self.candidates))
        return within if self.loads is None else torch.cat([home, within[..., 1:]], -1)

    def _fitting(self) -> Bool[Tensor, "b p n"]:
        if self.loads is None:
            return ~self.visited
        demand, limit = self.loads
        allowed = ~self.visited & (demand[:, None, :] <= (limit[:, None] - self.carried)[..., None])
        # The depot is closed only to a vehicle that stands on it and still has customers to serve.
        allowed[..., 0] = (self.place.at != 0) | self._served()
        return allowed

    def done(self) -> bool:
        """True when every rollout has visited all nodes and, with a depot, has come home."""
        n = self.visited.shape[-1]
        if self.demand is None:
            return self.moves >= n
        return bool(((self.place.at == 0) & self._served()).all())

    def _served(self) -> Bool[Tensor, "b p"]:
        return self.visited[..., 1:].all(-1)


@dataclass
class _Heads:
    """The tables with keys and values split by head, ready for many queries."""

    tables: Tables
    key: Float[Tensor, "b h k n"]
    value: Float[Tensor, "b h n k"]
    pointer: Float[Tensor, "b d n"]
    load: Float[Tensor, "b d"] | None
    fade: Float[Tensor, "b h"] | None

    def scores(self, place: Place, allowed: Bool[Tensor, "b p n"]) -> Float[Tensor, "b p n"]:
        """What the clipped logits are made of: (glimpse . pointer_j + bias_j) / sqrt(d) + near_j."""
        t, (start, at, load) = self.tables, place
        b, p = at.shape
        d, h = t.last.shape[-1], t.heads
        query = _rows(t.last, at)
        if t.first is not None:
            query = query + _rows(t.first, start)
        if self.load is not None and load is not None:
            query = query + load[..., None].to(query.dtype) * self.load[:, None, :]
        query = query.view(b, p, h, d // h).transpose(1, 2) / math.sqrt(d // h)
        score = query @ self.key
        if self.fade is not None and t.space is not None:
            score = score - self.fade[:, :, None, None] * _rows(t.space, at)[:, None]
        weight = score.masked_fill_(~allowed[:, None], -torch.inf).softmax(-1)
        glimpse = (weight @ self.value).transpose(1, 2).reshape(b, p, d)
        pointed = (glimpse @ self.pointer + t.bias[:, None, :]) / math.sqrt(d)
        return pointed if t.near is None else pointed + _rows(t.near, at)

    def log_softmax(self, score: Float[Tensor, "b p n"], allowed: Bool[Tensor, "b p n"]) -> Float[Tensor, "b p n"]:
        """Log-probabilities of the next node; -inf where it is not allowed."""
        return (self.tables.clip * score.tanh()).masked_fill(~allowed, -torch.inf).log_softmax(-1)


def _split(tables: Tables, shared: Mapping[str, Tensor] | None = None) -> _Heads:
    b, n, d = tables.key.shape
    split = (b, n, tables.heads, d // tables.heads)
    key = tables.key.reshape(split).permute(0, 2, 3, 1).contiguous()
    value = tables.value.reshape(split).transpose(1, 2).contiguous()
    own = {name: vector.expand(b, -1) for name in SHARED if (vector := getattr(tables, name)) is not None}
    own |= shared or {}
    return _Heads(tables, key, value, tables.pointer.transpose(1, 2), own.get("load"), own.get("fade"))


def _rows(table: Num[Tensor, "b n k"], index: Int[Tensor, "b p"]) -> Num[Tensor, "b p k"]:
    return table.gather(1, index[..., None].expand(-1, -1, table.shape[-1]))
