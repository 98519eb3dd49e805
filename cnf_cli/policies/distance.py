"""What distances say to a decoder: nearer nodes are preferred in pointing and seen more clearly in attention."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances

SPREAD = 4.0
FLOOR = 1e-3
"""Share of a map's width: nodes closer than this are as near as can be, so that equal points have a logarithm."""


def apart(problem: BaseProblem, inst: Instances) -> Float[Tensor, "b n n"]:
    """Distances in map widths; a matrix of costs in shares of its largest."""
    between = problem.distances(inst)
    width = between.amax((1, 2)) if inst.xy is None else (inst.xy.amax(1) - inst.xy.amin(1)).amax(-1)
    return between / torch.where(width > 0, width, 1.0)[:, None, None]


def nearness(apart: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """-ln of distances in map widths, FLOOR at the least; its derivative is 0 below."""
    return -apart.clamp_min(FLOOR).log()


def crowd(apart: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """The same with the distance to which n nodes on a square are from each other as its unit: 1 / sqrt(n)."""
    return nearness(apart) - 0.5 * math.log(apart.shape[-1])


def space(apart: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Distances times log2(n): among more nodes attention has to fall off faster."""
    return apart * math.log2(max(2, apart.shape[-1]))


class Learned(nn.Module):
    """Numbers that training finds, one for each head; several differ from the start, so that some heads see far."""

    def __init__(self, count: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(count))
        self.reset()

    def reset(self) -> None:
        """As at first: from a quarter of the start to four times as much, by equal factors; one alone is the start."""
        count = len(self.weight)
        way = torch.linspace(-1, 1, count) if count > 1 else torch.zeros(1)
        with torch.no_grad():
            self.weight.copy_(self.start * SPREAD**way)
