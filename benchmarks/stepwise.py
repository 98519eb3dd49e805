"""The yardstick: POMO the way its published code works, one decoder call with autograd per step.

Written from the formulas, with the published code's habits: InstanceNorm1d between transposes, attention by two matrix
products, a mask tensor added at every step, lists that grow by concatenation, a graph over all steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, HEADS, LAYERS, FEED_FORWARD, CLIP = 128, 8, 6, 512, 10.0


def _split(x: Tensor) -> Tensor:
    b, n, d = x.shape
    return x.view(b, n, HEADS, d // HEADS).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    b, _, n, width = q.shape
    score = q @ k.transpose(2, 3) / width**0.5
    if mask is not None:
        score = score + mask[:, None]
    return (score.softmax(3) @ v).transpose(1, 2).reshape(b, n, HEADS * width)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.combine = nn.Linear(D, D)
        self.norm1 = nn.InstanceNorm1d(D, affine=True, track_running_stats=False)
        self.norm2 = nn.InstanceNorm1d(D, affine=True, track_running_stats=False)
        self.ff1, self.ff2 = nn.Linear(D, FEED_FORWARD), nn.Linear(FEED_FORWARD, D)

    def forward(self, h: Tensor) -> Tensor:
        seen = self.combine(_attend(_split(self.q(h)), _split(self.k(h)), _split(self.v(h))))
        h = self.norm1((h + seen).transpose(1, 2)).transpose(1, 2)
        return self.norm2((h + self.ff2(F.relu(self.ff1(h)))).transpose(1, 2)).transpose(1, 2)


class Stepwise(nn.Module):
    """TSP without demands, CVRP with them."""

    def __init__(self, depot: bool) -> None:
        super().__init__()
        self.node = nn.Linear(3 if depot else 2, D)
        self.depot = nn.Linear(2, D) if depot else None
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.first = None if depot else nn.Linear(D, D, bias=False)
        self.last = nn.Linear(D + depot, D, bias=False)
        self.k, self.v = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.combine = nn.Linear(D, D)

    def encode(self, xy: Tensor, demand: Tensor | None) -> Tensor:
        if self.depot is None or demand is None:
            h = self.node(xy)
        else:
            customers = torch.cat([xy[:, 1:], demand[:, 1:, None]], 2)
            h = torch.cat([self.depot(xy[:, :1]), self.node(customers)], 1)
        for layer in self.layers:
            h = layer(h)
        return h

    def forward(self, xy: Tensor, demand: Tensor | None, sample: bool) -> tuple[Tensor, Tensor]:
        """(cost, log p) of the rollouts from every start."""
        h = self.encode(xy, demand)
        keys = (h, _split(self.k(h)), _split(self.v(h)))
        b, n, _ = h.shape
        start = torch.arange(0 if demand is None else 1, n).expand(b, -1)
        if demand is None:
            tour, log_prob = self._visit(keys, start, sample)
        else:
            tour, log_prob = self._serve(keys, start, demand, sample)
        points = xy[:, None].expand(-1, start.shape[1], -1, -1).gather(2, tour[..., None].expand(-1, -1, -1, 2))
        return (points - points.roll(-1, 2)).square().sum(3).sqrt().sum(2), log_prob.sum(2)

    def _probabilities(self, keys: tuple[Tensor, Tensor, Tensor], query: Tensor, mask: Tensor) -> Tensor:
        h, k, v = keys
        glimpse = self.combine(_attend(_split(query), k, v, mask))
        return (CLIP * torch.tanh(glimpse @ h.transpose(1, 2) / D**0.5) + mask).softmax(2)

    @staticmethod
    def _pick(probabilities: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        b, p, n = probabilities.shape
        if not sample:
            return probabilities.argmax(2), probabilities.new_zeros(b, p)
        with torch.no_grad():
            chosen = probabilities.reshape(b * p, n).multinomial(1).view(b, p)
        return chosen, probabilities.gather(2, chosen[..., None])[..., 0].log()

    def _visit(self, keys: tuple[Tensor, Tensor, Tensor], start: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        h = keys[0]
        b, n, _ = h.shape
        mask = torch.zeros(b, n, n).scatter(2, start[..., None], -torch.inf)
        assert self.first is not None
        first, at = self.first(_rows(h, start)), start
        tour, log_prob = start[..., None], h.new_zeros(b, n, 0)
        for _ in range(n - 1):
            at, step = self._pick(self._probabilities(keys, first + self.last(_rows(h, at)), mask), sample)
            tour = torch.cat([tour, at[..., None]], 2)
            log_prob = torch.cat([log_prob, step[..., None]], 2)
            mask = mask.scatter(2, at[..., None], -torch.inf)
        return tour, log_prob

    def _serve(
        self, keys: tuple[Tensor, Tensor, Tensor], start: Tensor, demand: Tensor, sample: bool
    ) -> tuple[Tensor, Tensor]:
        h = keys[0]
        b, n, _ = h.shape
        p = start.shape[1]
        visited = torch.zeros(b, p, n).scatter(2, start[..., None], -torch.inf)
        wanted = demand[:, None].expand(-1, p, -1)
        load, at = 1 - wanted.gather(2, start[..., None])[..., 0], start
        tour = torch.stack([torch.zeros_like(start), start], 2)
        log_prob = h.new_zeros(b, p, 0)
        while True:
            served = torch.isinf(visited[..., 1:]).all(2)
            home = at == 0
            if bool((served & home).all()):
                return tour, log_prob
            mask = visited.masked_fill(load[..., None] + 1e-5 < wanted, -torch.inf)
            mask[..., 0] = torch.where(home & ~served, -torch.inf, 0.0)
            query = self.last(torch.cat([_rows(h, at), load[..., None]], 2))
            at, step = self._pick(self._probabilities(keys, query, mask), sample)
            tour = torch.cat([tour, at[..., None]], 2)
            log_prob = torch.cat([log_prob, step[..., None]], 2)
            load = torch.where(at == 0, 1.0, load - wanted.gather(2, at[..., None])[..., 0])
            visited = visited.scatter(2, at[..., None], -torch.inf)


def _rows(h: Tensor, index: Tensor) -> Tensor:
    return h.gather(1, index[..., None].expand(-1, -1, h.shape[2]))
