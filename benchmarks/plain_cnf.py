"""The yardstick: CNF on TSP as one would first write it, and as published code is written.

Nothing is shared and nothing is skipped: every rollout is a loop of decoder calls, training and attack keep the graph
of the whole loop, the global attack scores and attacks anew, R and R' are sampled on the whole pool. Written for these
benchmarks only; `benchmarks.cnf_step` times it beside `cnf_cli.defences.cnf`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam


class PlainLayer(nn.Module):
    """One encoder layer: attention, then feed-forward, each followed by a residual sum and an instance norm."""

    def __init__(self, d: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.Wq, self.Wk, self.Wv = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.combine = nn.Linear(d, d)
        self.norm1, self.norm2 = (nn.InstanceNorm1d(d, affine=True, track_running_stats=False) for _ in range(2))
        self.ff1, self.ff2 = nn.Linear(d, feed_forward), nn.Linear(feed_forward, d)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (split(w(h), self.heads) for w in (self.Wq, self.Wk, self.Wv))
        h = h + self.combine(attend(q, k, v))
        h = self.norm1(h.transpose(1, 2)).transpose(1, 2)
        out = h + self.ff2(F.relu(self.ff1(h)))
        return self.norm2(out.transpose(1, 2)).transpose(1, 2)


class PlainPomo(nn.Module):
    """POMO for TSP: encoder, and a decoder that is called once per step."""

    def __init__(self, d: int = 128, layers: int = 6, heads: int = 8, feed_forward: int = 512) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Linear(2, d)
        self.layers = nn.ModuleList(PlainLayer(d, heads, feed_forward) for _ in range(layers))
        self.Wq_first, self.Wq_last, self.Wk, self.Wv = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.combine = nn.Linear(d, d)

    def forward(self, xy: Tensor, tours: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(tours, their log-probabilities, their lengths): sampled from all starts, or along given tours."""
        b, n, _ = xy.shape
        h = self.embedding(xy)
        for layer in self.layers:
            h = layer(h)
        k, v = split(self.Wk(h), self.heads), split(self.Wv(h), self.heads)
        start = torch.arange(n).expand(b, n)
        q_first = split(self.Wq_first(pick_rows(h, start)), self.heads)
        mask = torch.zeros(b, n, n).scatter(2, start[..., None], -torch.inf)
        tour, probs, at = [start], [], start
        for t in range(1, n):
            q = q_first + split(self.Wq_last(pick_rows(h, at)), self.heads)
            glimpse = self.combine(attend(q, k, v, mask))
            score = glimpse @ h.transpose(1, 2) / math.sqrt(h.shape[-1])
            prob = (10 * torch.tanh(score) + mask).softmax(2)
            at = sample(prob) if tours is None else tours[..., t]
            probs.append(prob.gather(2, at[..., None])[..., 0])
            tour.append(at)
            mask = mask.scatter(2, at[..., None], -torch.inf)
        chosen = torch.stack(tour, 2)
        return chosen, torch.stack(probs, 2).log().sum(2), length(xy, chosen)


def split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    score = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if mask is not None:
        score = score + mask[:, None]
    return (score.softmax(3) @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def pick_rows(h: Tensor, index: Tensor) -> Tensor:
    return h.gather(1, index[..., None].expand(*index.shape, h.shape[2]))


def sample(prob: Tensor) -> Tensor:
    b, p, n = prob.shape
    while True:
        with torch.no_grad():
            at = prob.reshape(b * p, n).multinomial(1).reshape(b, p)
        if bool((prob.gather(2, at[..., None]) != 0).all()):
            return at


def length(xy: Tensor, tours: Tensor) -> Tensor:
    b, p, n = tours.shape
    ordered = xy[:, None].expand(b, p, n, 2).gather(2, tours[..., None].expand(b, p, n, 2))
    return (ordered - ordered.roll(-1, 2)).square().sum(3).sqrt().sum(2)


class PlainRouter(nn.Module):
    """The published router for TSP."""

    def __init__(self, models: int, width: int = 128) -> None:
        super().__init__()
        self.embed_nodes, self.embed_costs = nn.Linear(2, width), nn.Linear(models, width)
        self.Wq, self.Wk = nn.Linear(2 * width, width, bias=False), nn.Linear(width, width, bias=False)
        self.experts = nn.Embedding(models, width)

    def forward(self, xy: Tensor, cost: Tensor) -> Tensor:
        q = self.Wq(torch.cat([self.embed_nodes(xy).mean(1), self.embed_costs(cost)], 1))
        return 10 * torch.tanh(q @ self.Wk(self.experts.weight).T / math.sqrt(q.shape[1]))


class PlainCnf:
    """One object per run; `step` is Algorithm 1, lines 3 to 15, with a one-step attack."""

    def __init__(self, models: Sequence[PlainPomo], routing: str = "topk-with-best", lr: float = 1e-4) -> None:
        self.models, self.routing = list(models), routing
        self.optimizers = [Adam(m.parameters(), lr=lr, weight_decay=1e-6) for m in models]
        self.router = PlainRouter(len(models))
        self.router_optimizer = Adam(self.router.parameters(), lr=lr, weight_decay=1e-6)

    def step(self, x: Tensor, alpha: float, k: int) -> dict[str, Any]:
        """One update of every model and the router."""
        local = [attack(model, x, alpha) for model in self.models]
        best = self.evaluate(x).argmin(1)
        rows = [(best == j).nonzero()[:, 0] for j in range(len(self.models))]
        together = [attack(m, x[r], alpha) for m, r in zip(self.models, rows, strict=True) if len(r)]
        pool = torch.cat([x, *local, *together])
        cost = self.evaluate(pool)
        log_p = self.router(pool, cost).log_softmax(0)
        top = log_p.topk(min(k, len(pool)), dim=0).indices
        loads = []
        for j, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            chosen = top[:, j]
            if self.routing == "topk-with-best":
                chosen = torch.cat([chosen, (cost.argmin(1) == j).nonzero()[:, 0]]).unique()
            loads.append(len(chosen))
            train(model, optimizer, pool[chosen])
        reward = cost.amin(1) - self.evaluate(pool).amin(1)
        loss = -(reward[top] * log_p.gather(0, top)).mean()
        self.router_optimizer.zero_grad()
        loss.backward()
        self.router_optimizer.step()
        return {"loads": loads, "router_loss": float(loss.detach())}

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """The lowest sampled cost of every model on every instance."""
        return torch.stack([model(x)[2].amin(1) for model in self.models], 1)


def attack(model: PlainPomo, x: Tensor, alpha: float) -> Tensor:
    """One step up the gradient of alpha mean[(c / mean c) log p], then min-max per axis."""
    x = x.detach().requires_grad_()
    _, log_p, cost = model(x)
    objective = alpha * (cost / cost.mean(1, keepdim=True) * log_p).mean()
    (grad,) = torch.autograd.grad(objective, x)
    moved = (x + grad).detach()
    low, high = moved.amin(1, keepdim=True), moved.amax(1, keepdim=True)
    return (moved - low) / (high - low)


def train(model: PlainPomo, optimizer: Adam, x: Tensor) -> None:
    """One REINFORCE step with the rollouts' mean as baseline."""
    _, log_p, cost = model(x)
    weight = (cost - cost.mean(1, keepdim=True)).detach()
    optimizer.zero_grad()
    (weight * log_p).mean().backward()
    optimizer.step()


def copy_policy(policy: Any) -> PlainPomo:
    """A plain network with the weights of a `cnf_cli.policies.pomo.Policy` for TSP."""
    p = policy.params
    plain = PlainPomo(p.width, p.layers, p.heads, p.feed_forward)
    names = {"embedding": policy.embed["node"], "combine": policy.decoder.combine, "Wk": policy.decoder.k}
    names |= {"Wv": policy.decoder.v, "Wq_first": policy.decoder.first, "Wq_last": policy.decoder.last}
    for i, layer in enumerate(policy.layers):
        parts = {"Wq": layer.q, "Wk": layer.k, "Wv": layer.v}
        parts |= {name: getattr(layer, name) for name in ("combine", "ff1", "ff2", "norm1", "norm2")}
        names |= {f"layers.{i}.{name}": module for name, module in parts.items()}
    state = {f"{name}.{k}": v for name, module in names.items() for k, v in module.state_dict().items()}
    plain.load_state_dict(state)
    return plain
