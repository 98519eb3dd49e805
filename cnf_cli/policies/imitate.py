"""Solver tours as a decoder would make them: begun at any node, in either direction, routes in any order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def closed_tours(
    labels: Int[Tensor, "b n"], starts: Int[Tensor, " p"], rng: torch.Generator, *, reverse: bool
) -> tuple[Int[Tensor, "b p n"], Bool[Tensor, "b p"]]:
    """Each instance's closed tour read from every start, forwards or, with `reverse`, either way at random."""
    n, place = labels.shape[1], labels.argsort(1)[:, starts]
    step = torch.ones_like(place)
    if reverse:
        step = 1 - 2 * torch.randint(0, 2, place.shape, generator=rng)
    at = (place[..., None] + step[..., None] * torch.arange(n)) % n
    tours = labels[:, None, :].expand(-1, len(starts), -1).gather(2, at)
    return tours, torch.ones(place.shape, dtype=torch.bool)


def depot_tours(
    labels: Sequence[Sequence[Sequence[int]]], starts: Int[Tensor, " p"], rng: torch.Generator
) -> tuple[Int[Tensor, "b p t"], Bool[Tensor, "b p"]]:
    """Each instance's routes as one walk from every start, and whether the walk has the routes' cost.

    Only a route's first or last customer can be served first at that cost. From any other customer its route is cut in
    two: such a walk is feasible but dearer, and not to be learned from.
    """
    walks, good = [], []
    for routes in labels:
        where = {customer: r for r, route in enumerate(routes) for customer in route}
        order = torch.rand(len(starts), len(routes), generator=rng).argsort(1).tolist()
        turned = (torch.rand(len(starts), len(routes), generator=rng) < 0.5).tolist()
        for p, start in enumerate(starts.tolist()):
            own = routes[where[start]]
            at = own.index(start)
            ends = at in (0, len(own) - 1)
            first, rest = ([*own[at:]], own[:at]) if at == 0 or not ends else (list(own[::-1]), own[:0])
            walk = [0, *first]
            if rest:
                walk += [0, *rest]
            for r in order[p]:
                if r != where[start]:
                    walk += [0, *(routes[r][::-1] if turned[p][r] else routes[r])]
            walks.append([*walk, 0])
            good.append(ends)
    longest = max(map(len, walks))
    padded = torch.tensor([walk + [0] * (longest - len(walk)) for walk in walks])
    shape = (len(labels), len(starts))
    return padded.view(*shape, longest), torch.tensor(good).view(shape)
