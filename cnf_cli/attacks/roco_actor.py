"""The learned ROCO attacker: a small graph network that sees every edge's cost, trained by PPO against its victim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cnf_cli.attacks.roco_edges import best_edges, candidates, halve, on_tour
from cnf_cli.attacks.roco_victims import Victim
from cnf_cli.problems.instances import Instances

NODE, EDGE = 6, 7
GROUP = 4
"""Episodes that begin with the same instance and are compared with each other: some instances are easily hurt."""


@dataclass(frozen=True)
class Scene:
    """What the attacker sees: the matrix as it is now, the victim's tour on it, and what it may do."""

    matrix: Float[Tensor, "b n n"]
    tour: Int[Tensor, "b n"]
    may: Bool[Tensor, "b n n"]


class Actor(nn.Module):
    """Logits of every directed edge, and the value of a scene.

    The published network averages over a complete graph without edge weights, so that all its nodes look alike and its
    choice is uniform whatever its parameters. Here messages and choices see each edge's own cost, both directions, its
    place in the rows, columns and tour, and what the victim's tour would gain from using it at half its cost.
    """

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.node = nn.Linear(NODE, width)
        self.edge = nn.ModuleList(nn.Linear(EDGE, width) for _ in range(layers))
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.other = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.start, self.end, self.arc = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(EDGE, width)
        self.score = nn.Linear(width, 1)
        self.value = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, scene: Scene) -> tuple[Float[Tensor, "b e"], Float[Tensor, " b"]]:
        """(log-probabilities of the n * n directed edges, -inf where not allowed; value)."""
        nodes, edges = features(scene)
        h = torch.relu(self.node(nodes))
        for edge, own, other, update in zip(self.edge, self.own, self.other, self.update, strict=True):
            seen = torch.relu(edge(edges) + own(h)[:, :, None] + other(h)[:, None]).mean(2)
            h = h + torch.relu(update(torch.cat([h, seen], -1)))
        pair = torch.relu(self.start(h)[:, :, None] + self.end(h)[:, None] + self.arc(edges))
        logits = self.score(pair)[..., 0].masked_fill(~scene.may, -torch.inf).flatten(1)
        value = self.value(torch.cat([h.mean(1), h.amax(1)], -1))[:, 0]
        return logits.log_softmax(1), value

    @torch.no_grad()
    def propose(self, scene: Scene, branch: int, rng: torch.Generator | None = None) -> Int[Tensor, "b c"]:
        """branch^2 edges: drawn without replacement; without a generator, from the `branch` likeliest first nodes to
        the `branch` likeliest second nodes of each."""
        flat = self(scene)[0]
        if rng is not None:
            noise = torch.empty(flat.shape, device=rng.device).exponential_(generator=rng).clamp_min(1e-30)
            return best_edges(flat - noise.log().to(flat.device), scene.may, branch * branch)
        log_p = flat.view_as(scene.matrix)
        some = scene.may.any(2)
        first = log_p.logsumexp(2).masked_fill(~some, -torch.inf).topk(min(branch, log_p.shape[1]), 1).indices
        rows = torch.zeros_like(some).scatter(1, first, True)
        # The best `branch` of each chosen row: everything below the row's own limit is closed.
        limit = log_p.topk(min(branch, log_p.shape[2]), 2).values[..., -1:]
        may = scene.may & rows[..., None] & (log_p >= limit)
        return best_edges(log_p.flatten(1), may, branch * branch)


def make_actor(seed: int, width: int, layers: int = 2) -> Actor:
    """An untrained actor whose weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Actor(width, layers)


def features(scene: Scene) -> tuple[Float[Tensor, "b n f"], Float[Tensor, "b n n g"]]:
    """What is known of nodes and directed edges, in units of the mean cost, so that neither n nor the scale matters."""
    n = scene.matrix.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=scene.matrix.device)
    mean = scene.matrix.sum((1, 2), keepdim=True) / max(1, n * (n - 1))
    cost = scene.matrix / mean.clamp_min(1e-9)
    away = cost.masked_fill(eye, torch.inf)
    out, into = away.amin(2), away.amin(1)
    along = on_tour(scene.tour)
    leave, reach = (cost * along).sum(2), (cost * along).sum(1)
    others = max(1, n - 1)
    nodes = torch.stack([cost.sum(2) / others, cost.sum(1) / others, out, into, leave, reach], -1)
    edges = [cost, cost.transpose(1, 2), along.to(cost.dtype), along.transpose(1, 2).to(cost.dtype)]
    edges += [cost / 2 - out[..., None], cost / 2 - into[:, None], detour(cost, scene.tour)]
    return nodes, torch.stack(edges, -1).clamp(-10, 10)


def detour(cost: Float[Tensor, "b n n"], tour: Int[Tensor, "b n"]) -> Float[Tensor, "b n n"]:
    """Extra cost of moving node j to right after i in the tour, were the edge from i to j half as dear.

    Negative: the tour could be improved. Near 0: a tempting mistake. Meaningless where j follows or precedes i.
    """
    n = cost.shape[-1]
    after, before = torch.empty_like(tour), torch.empty_like(tour)
    after.scatter_(1, tour, tour.roll(-1, 1))
    before.scatter_(1, tour, tour.roll(1, 1))

    def arc(start: Tensor, end: Tensor) -> Tensor:
        return cost.flatten(1).gather(1, (start * n + end).flatten(1)).view(start.shape)

    every = torch.arange(n, device=cost.device).expand(tour.shape)
    close = arc(before, after) - arc(before, every) - arc(every, after)  # node j is taken out
    j = every[:, None, :].expand_as(cost)
    enter = arc(j, after[:, :, None].expand_as(j)) - arc(every, after)[:, :, None]  # and put in after i
    return cost / 2 + enter + close[:, None]


@torch.no_grad()
def look(victim: Victim, inst: Instances, rule: str) -> tuple[Scene, Float[Tensor, " b"]]:
    """The scene of every instance and the victim's cost on it: one call each."""
    assert inst.matrix is not None
    tour, cost = victim(inst)
    return Scene(inst.matrix, tour, candidates(inst.matrix, tour, rule)), cost


@dataclass(frozen=True)
class Step:
    """One step of many episodes."""

    scene: Scene
    edge: Int[Tensor, " b"]
    log_p: Float[Tensor, " b"]
    value: Float[Tensor, " b"]
    reward: Float[Tensor, " b"]
    live: Bool[Tensor, " b"]
    """False where there was nothing left to halve."""


def fit_ppo(actor: Actor, victim: Victim, clean: Instances, params: Any, rng: torch.Generator) -> dict[str, float]:
    """The actor has been trained on `clean` against the victim; what it earned in the first and the last updates.

    Reward: how much the victim's cost rose by one edge, as a share of its cost on the clean instance. `upside` counts
    falls as nothing: the search keeps the best of many tries, so an edge that may hurt is worth more than a safe one.
    """
    optimizer = torch.optim.Adam(actor.parameters(), lr=params.lr)
    batch = min(params.fit_batch, max(1, params.episodes))
    earned = []
    groups = -(-batch // GROUP)
    for _ in range(max(1, params.episodes // batch)):
        rows = torch.randint(len(clean), (groups,), generator=rng, device=rng.device).repeat_interleave(GROUP)[:batch]
        steps = play(actor, victim, clean[rows.to(clean.device)], params, rng)
        earned.append(float(torch.stack([s.reward for s in steps]).sum(0).mean()))
        learn(actor, optimizer, steps, params)
    few = max(1, len(earned) // 5)
    return {"first": sum(earned[:few]) / few, "last": sum(earned[-few:]) / few}


@torch.no_grad()
def play(actor: Actor, victim: Victim, inst: Instances, params: Any, rng: torch.Generator) -> list[Step]:
    """T edges drawn from the actor, one after another, with what each earned."""
    rule = "off_tour" if params.candidates == "released" else params.candidates
    scene, cost = look(victim, inst, rule)
    start, steps = cost.clamp_min(1e-9), []
    for _ in range(params.steps):
        log_p, value = actor(scene)
        live = scene.may.flatten(1).any(1)
        safe = torch.where(live[:, None], log_p.exp(), torch.ones_like(log_p)).to(rng.device)
        edge = torch.multinomial(safe, 1, generator=rng)[:, 0].to(cost.device)
        now = halve(scene.matrix, torch.where(live, edge, -1))
        following, new = look(victim, inst.with_(matrix=now), rule)
        chosen = log_p.gather(1, edge[:, None])[:, 0]
        rise = (new - cost) / start
        steps.append(Step(scene, edge, chosen, value, rise.clamp_min(0) if params.reward == "upside" else rise, live))
        scene, cost = following, new
    return steps


def learn(actor: Actor, optimizer: torch.optim.Optimizer, steps: list[Step], params: Any) -> None:
    """One PPO update: `update_epochs` passes over the episodes with the clipped ratio."""
    returns, future = [], torch.zeros_like(steps[0].reward)
    for step in reversed(steps):
        future = step.reward + params.gamma * future
        returns.append(future - _group_mean(future))
    live = torch.cat([s.live for s in steps])
    if not bool(live.any()):
        return
    scene = Scene(*(torch.cat([getattr(s.scene, k) for s in steps])[live] for k in ("matrix", "tour", "may")))
    edge, old = (torch.cat([getattr(s, k) for s in steps])[live] for k in ("edge", "log_p"))
    goal = torch.cat(returns[::-1])[live]
    goal = (goal - goal.mean()) / goal.std(unbiased=False).clamp_min(1e-6)
    for _ in range(params.update_epochs):
        log_p, value = actor(scene)
        gain = (goal - value).detach()
        ratio = (log_p.gather(1, edge[:, None])[:, 0] - old).exp()
        clipped = ratio.clamp(1 - params.clip, 1 + params.clip)
        entropy = -(log_p.exp() * log_p.masked_fill(~scene.may.flatten(1), 0.0)).sum(1)
        loss = -torch.minimum(ratio * gain, clipped * gain).mean() - params.entropy * entropy.mean()
        loss = loss + (goal - value).square().mean()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        optimizer.step()


def _group_mean(values: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    group = torch.arange(len(values), device=values.device) // GROUP
    total = torch.zeros_like(values).index_add(0, group, values)
    return (total / group.bincount(minlength=len(values)).clamp_min(1))[group]
