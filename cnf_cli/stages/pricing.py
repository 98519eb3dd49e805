"""What a policy sees of an instance, and what its tours really cost there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cnf_cli.formats.dataset import Block
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.distance import distance_matrix
from cnf_cli.problems.instances import Instances
from cnf_cli.stages.protocol import Normalise

CVRPLIB_WIDTH = 1000.0
"""The published evaluation divides the X instances' coordinates by this."""


class ByRule(BaseProblem):
    """A problem whose tours are priced by one instance's own distances, whatever the coordinates the policy sees.

    So the best of many tours is chosen by what is counted in the end: TSPLIB's rounded lengths, or a matrix.
    """

    def __init__(self, problem: BaseProblem, distances: Tensor) -> None:
        self.inner, self.own = problem, distances
        self.kind, self.depots, self.query = problem.kind, problem.depots, problem.query
        self.feature_groups, self.movable = problem.feature_groups, problem.movable

    def sample(self, count: int, *, rng: torch.Generator, n: int | None = None, dist: str | None = None) -> Instances:
        return self.inner.sample(count, rng=rng, n=n, dist=dist)

    def features(self, inst: Instances) -> dict[str, Tensor]:
        return self.inner.features(inst)

    def masks(self, inst: Instances, names: Sequence[str]) -> dict[str, Tensor]:
        return self.inner.masks(inst, names)

    def cost(self, inst: Instances, tours: Tensor) -> Tensor:
        """Cost of the closed tours of any number of copies of the one instance, in its own units."""
        at, own = tours.long(), self.own.to(tours.device)
        return own[at, at.roll(-1, -1)].sum(-1)


def by_own_rule(problem: BaseProblem, block: Block) -> bool:
    """Whether what counts differs from what the policy sees: rounded lengths, or a matrix behind coordinates."""
    return block.rule != "euclid" and not _reads_matrix(problem)


def _reads_matrix(problem: BaseProblem) -> bool:
    return "matrix" in problem.movable


def by_rule(problem: BaseProblem, block: Block, i: int) -> ByRule:
    """The problem with instance i's own distances."""
    if block.matrix is not None:
        return ByRule(problem, torch.from_numpy(block.matrix[i]))
    assert block.xy is not None
    return ByRule(problem, torch.from_numpy(distance_matrix(block.rule, block.xy[i])))


def seen_by_policy(problem: BaseProblem, block: Block, how: Normalise) -> Instances:
    """The block's instances as a policy is shown them, in the unit square.

    auto: as they are where they are in the unit square and unrounded (generated and adversarial sets), else fit;
    a matrix likewise, by its largest entry.
    fit: each instance moved and scaled to fill it. published: as the method's own benchmark script does it, TSPLIB
    divided by the largest coordinate without a shift, CVRPLIB by 1000.
    """
    if _reads_matrix(problem):
        small = block.matrix is not None and block.matrix.max() <= 1
        return problem.from_block(block) if how == "auto" and small else problem.normalise(block)
    assert block.xy is not None
    inside = block.xy.min() >= 0 and block.xy.max() <= 1
    if how == "auto" and block.rule == "euclid" and inside:
        return problem.from_block(block)
    if how == "published" and block.rule == "euc_2d" and block.xy.min() >= 0:
        largest = block.xy.max(axis=(1, 2), keepdims=True)
        width = np.full_like(largest, CVRPLIB_WIDTH) if problem.depots else largest
        if (largest <= width).all():
            inst = problem.from_block(block)
            return inst.with_(xy=torch.from_numpy((block.xy / np.where(width > 0, width, 1.0)).astype(np.float32)))
    return problem.normalise(block)
