"""How ROCO looks for the edges that hurt most: beam search over an attacker's proposals, random walks, annealing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cnf_cli.attacks.roco_actor import Actor, Scene
from cnf_cli.attacks.roco_edges import candidates, draw_edges, halve
from cnf_cli.attacks.roco_victims import Counted
from cnf_cli.problems.atsp import content_seed
from cnf_cli.problems.instances import Instances

HARDER = 1e-6
"""An answer is worse only when its cost rose by more than this, relatively: above float32 rounding."""


class Team:
    """The victims together, and how often they were asked about each clean instance."""

    def __init__(self, victims: Sequence[Counted], clean: Instances) -> None:
        self.victims, self.clean = victims, clean
        self.calls = torch.zeros(len(clean), dtype=torch.int64, device=clean.device)

    def ask(
        self, matrix: Float[Tensor, "r n n"], owner: Int[Tensor, " r"], which: Int[Tensor, " r"]
    ) -> tuple[Int[Tensor, "r n"], Float[Tensor, " r"]]:
        """(tour, cost) of each matrix by its own victim; every matrix keeps the one-hot seed of its clean instance."""
        tour = torch.zeros(matrix.shape[:2], dtype=torch.int64, device=matrix.device)
        cost = torch.zeros(len(matrix), device=matrix.device)
        for j, victim in enumerate(self.victims):
            rows = (which == j).nonzero()[:, 0]
            if len(rows):
                tour[rows], cost[rows] = victim(self.clean[owner[rows]].with_(matrix=matrix[rows]))
        self.calls += owner.bincount(minlength=len(self.calls))
        return tour, cost

    def ask_all(
        self, matrix: Float[Tensor, "r n n"], owner: Int[Tensor, " r"]
    ) -> tuple[Int[Tensor, "r n"], Float[Tensor, "r m"], Int[Tensor, " r"]]:
        """(the best victim's tour, every victim's cost, the best victim): as many calls as there are victims."""
        asked = [self.ask(matrix, owner, torch.full_like(owner, j)) for j in range(len(self.victims))]
        cost = torch.stack([c for _, c in asked], 1)
        best = cost.argmin(1)
        tours = torch.stack([t for t, _ in asked], 1)
        return tours[torch.arange(len(best), device=best.device), best], cost, best


class Best:
    """The hardest matrix seen for each clean instance; the clean one until a harder one is offered."""

    def __init__(self, clean: Float[Tensor, "b n n"], cost: Float[Tensor, " b"], at_least_one: bool) -> None:
        self.matrix, self.cost = clean.clone(), cost.clone()
        # The published search starts from minus 100, so that it always changes something, for better or worse.
        self.limit = torch.full_like(cost, -torch.inf) if at_least_one else cost * (1 + HARDER)

    def offer(self, matrix: Float[Tensor, "r n n"], cost: Float[Tensor, " r"], owner: Int[Tensor, " r"]) -> None:
        """Of equally hard matrices the first stays."""
        order = torch.argsort(cost, descending=True, stable=True)
        for k in order[_rank(owner[order]) == 0]:
            i = owner[k]
            if cost[k] > self.limit[i]:
                self.matrix[i], self.cost[i] = matrix[k], cost[k]
                self.limit[i] = cost[k] * (1 + HARDER)


@dataclass
class Beams:
    """What a level of the search stands on: r matrices with their victims' answers."""

    owner: Int[Tensor, " r"]
    matrix: Float[Tensor, "r n n"]
    tour: Int[Tensor, "r n"]
    cost: Float[Tensor, " r"]
    which: Int[Tensor, " r"]

    def rows(self, at: Tensor) -> Beams:
        return Beams(*(value[at] for value in vars(self).values()))


Propose = Callable[[Scene, Int[Tensor, " r"]], Int[Tensor, "r c"]]
"""From scenes, and the victim each is aimed at, to the edges to try (a * n + b, -1 for none)."""


def beam_search(
    team: Team, start: Beams, best: Best, most: Int[Tensor, " b"], budget: int, propose: Propose, params: Any
) -> None:
    """Level by level the `width` hardest children of each instance are kept; `best` holds the hardest of all levels.

    With several victims each level first finds out which of them is best now on each kept matrix, and attacks that
    one; a matrix then counts as hard as it is for the best of them. choose = "clean" stays with the victim that was
    best on the clean instance, as the published code does.
    """
    again = len(team.victims) > 1 and params.choose == "current"
    budget -= params.width * len(team.victims) if again else 0  # kept for finding out who is best
    beams = start
    for level in range(int(most.max())):
        going = (most[beams.owner] > level) & (team.calls[beams.owner] < budget)
        beams = beams.rows(going.nonzero()[:, 0])
        if not len(beams.owner):
            return
        rule = "tour" if params.candidates == "released" and level == 0 else params.candidates
        scene = Scene(beams.matrix, beams.tour, candidates(beams.matrix, beams.tour, rule))
        edge = propose(scene, beams.which)
        parent, column = (edge >= 0).nonzero(as_tuple=True)
        matrix, owner = halve(beams.matrix[parent], edge[parent, column]), beams.owner[parent]
        keep = _new(matrix, owner) & (team.calls[owner] + _rank(owner) < budget)
        parent, matrix, owner = parent[keep], matrix[keep], owner[keep]
        which = beams.which[parent]
        tour, cost = team.ask(matrix, owner, which)
        children = Beams(owner, matrix, tour, cost, which)
        order = torch.argsort(cost, descending=True, stable=True)
        beams = children.rows(order[_rank(owner[order]) < params.width])
        if again and len(beams.owner):
            beams.tour, costs, beams.which = team.ask_all(beams.matrix, beams.owner)
            beams.cost = costs.amin(1)
        best.offer(beams.matrix, beams.cost, beams.owner)


def random_walks(
    team: Team, start: Beams, best: Best, most: Int[Tensor, " b"], budget: int, rng: torch.Generator, params: Any
) -> None:
    """Edges off the current tour are halved at random, one after another, up to the limit, then anew from clean."""
    now, tours, count = start.matrix.clone(), start.tour.clone(), torch.zeros_like(most)
    while True:
        live = ((team.calls + len(team.victims) <= budget) & (most > 0)).nonzero()[:, 0]
        if not len(live):
            return
        over = count >= most
        matrix = torch.where(over[:, None, None], start.matrix, now)[live]
        tour = torch.where(over[:, None], start.tour, tours)[live]
        count = torch.where(over, 0, count)
        edge = draw_edges(candidates(matrix, tour, _plain(params.candidates)), 1, rng)[:, 0]
        matrix = halve(matrix, edge)
        tour, costs, _ = team.ask_all(matrix, live)
        now[live], tours[live] = matrix, tour
        count[live] += 1
        best.offer(matrix, costs.amin(1), live)


def anneal(
    team: Team, start: Beams, best: Best, most: Int[Tensor, " b"], budget: int, rng: torch.Generator, params: Any
) -> None:
    """Simulated annealing over sets of at most T halvings: add one, or take one back and add another."""
    clean, now, cost = start.matrix, start.matrix.clone(), start.cost.clone()
    tour, first = start.tour.clone(), start.cost.clamp_min(1e-9)
    times = torch.zeros_like(clean)  # how often each edge is halved
    rounds = max(1, budget // len(team.victims))
    for k in range(rounds):
        live = ((team.calls + len(team.victims) <= budget) & (most > 0)).nonzero()[:, 0]
        if not len(live):
            return
        heat = params.heat * (params.heat_end / params.heat) ** (k / rounds)
        luck = torch.rand(2, len(live), generator=rng, device=rng.device).to(clean.device)
        used = times[live].sum((1, 2))
        full = (used >= most[live]) | ((luck[0] < 0.3) & (used > 0))
        back = draw_edges(times[live] > 0, 1, rng)[:, 0]
        fewer = _add(times[live], torch.where(full, back, -1), -1.0)
        edge = draw_edges(candidates(now[live], tour[live], _plain(params.candidates)), 1, rng)[:, 0]
        tried = _add(fewer, edge, 1.0)
        matrix = clean[live] * 0.5**tried
        answer, costs, _ = team.ask_all(matrix, live)
        new = costs.amin(1)
        best.offer(matrix, new, live)
        rise = (new - cost[live]) / first[live] / heat
        taken = (rise >= 0) | (luck[1] < rise.clamp(max=0).exp())
        rows = live[taken]
        now[rows], tour[rows], cost[rows], times[rows] = matrix[taken], answer[taken], new[taken], tried[taken]


def proposer(actors: Sequence[Actor] | None, params: Any, rng: torch.Generator) -> Propose:
    """The attackers' edges, each victim's from its own attacker; without attackers, random ones."""
    branch: int = params.branch

    def propose(scene: Scene, which: Int[Tensor, " r"]) -> Int[Tensor, "r c"]:
        if actors is None:
            return draw_edges(scene.may, branch * branch, rng)
        out = torch.full((len(which), branch * branch), -1, dtype=torch.int64, device=which.device)
        for j, actor in enumerate(actors):
            rows = (which == j).nonzero()[:, 0]
            if len(rows):
                some = Scene(scene.matrix[rows], scene.tour[rows], scene.may[rows])
                found = actor.propose(some, branch, rng if params.propose == "sample" else None)
                out[rows, : found.shape[1]] = found
        return out

    return propose


def _plain(rule: str) -> str:
    return "off_tour" if rule == "released" else rule


def _add(times: Float[Tensor, "b n n"], edge: Int[Tensor, " b"], by: float) -> Float[Tensor, "b n n"]:
    flat = times.flatten(1).clone()
    row = (edge >= 0).nonzero()[:, 0]
    flat[row, edge[row]] += by
    return flat.view_as(times)


def _rank(owner: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
    """How many earlier rows belong to the same owner."""
    order = torch.argsort(owner, stable=True)
    sorted_ = owner[order]
    first = torch.searchsorted(sorted_, sorted_)
    out = torch.empty_like(owner)
    out[order] = torch.arange(len(owner), device=owner.device) - first
    return out


def _new(matrix: Float[Tensor, "r n n"], owner: Int[Tensor, " r"]) -> Bool[Tensor, " r"]:
    """False for a matrix that an earlier row of the same owner holds already: two orders of the same halvings."""
    seen: set[tuple[int, int]] = set()
    keys = list(zip(owner.tolist(), content_seed(matrix).tolist(), strict=True))
    return torch.tensor([not (k in seen or seen.add(k)) for k in keys], dtype=torch.bool, device=owner.device)  # type: ignore[func-returns-value]
