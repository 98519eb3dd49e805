"""The moves of the ROCO attack: which directed edges may be halved, and what halving does."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST = 1e-4
"""Edges that cost no more than this are left alone (1 in the published code's units)."""


def on_tour(tour: Int[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """True where the tour goes straight from i to j."""
    b, n = tour.shape
    flat = torch.zeros(b, n * n, dtype=torch.bool, device=tour.device)
    return flat.scatter(1, tour * n + tour.roll(-1, 1), True).view(b, n, n)


def candidates(
    matrix: Float[Tensor, "b n n"], tour: Int[Tensor, "b n"], rule: str = "off_tour"
) -> Bool[Tensor, "b n n"]:
    """The directed edges that may be halved.

    off_tour: cost above LEAST and not between neighbours on the victim's tour, in either direction, so that the
    victim's own tour costs what it did: if its answer gets worse, it is wrong. released: as in the published code the
    edge from the higher to the lower node decides for both directions. tour: between neighbours on the tour, whatever
    they cost (the published code's first step). all: every edge above LEAST.
    """
    n = matrix.shape[-1]
    along = on_tour(tour)
    along = (along | along.transpose(1, 2)) & ~torch.eye(n, dtype=torch.bool, device=matrix.device)
    if rule == "tour":
        return along
    dear = matrix > LEAST
    if rule == "released":
        low = dear.tril(-1)
        dear = low | low.transpose(1, 2)
    out = dear & ~torch.eye(n, dtype=torch.bool, device=matrix.device)
    return out if rule == "all" else out & ~along


def halve(matrix: Float[Tensor, "b n n"], edge: Int[Tensor, " b"]) -> Float[Tensor, "b n n"]:
    """Each matrix with one directed edge, a * n + b, at half its cost; an edge below 0 changes nothing."""
    b, n, _ = matrix.shape
    out = matrix.flatten(1).clone()
    row = torch.arange(b, device=matrix.device)
    at = edge.clamp_min(0)
    out[row, at] = torch.where(edge >= 0, out[row, at] / 2, out[row, at])
    return out.view(b, n, n)


def draw_edges(may: Bool[Tensor, "b n n"], count: int, rng: torch.Generator) -> Int[Tensor, "b c"]:
    """`count` different allowed edges of each instance, uniformly; -1 where there are not so many."""
    luck = torch.rand(may.shape, generator=rng, device=rng.device).to(may.device).flatten(1)
    return best_edges(luck + 1, may, count)


def best_edges(score: Float[Tensor, "b e"], may: Bool[Tensor, "b n n"], count: int) -> Int[Tensor, "b c"]:
    """The `count` allowed edges with the highest score, best first; -1 where there are not so many."""
    masked = score.masked_fill(~may.flatten(1), -torch.inf)
    top = masked.topk(min(count, masked.shape[1]), 1)
    return top.indices.masked_fill(top.values == -torch.inf, -1)
