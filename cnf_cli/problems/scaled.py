"""Instances on the scale a policy reads, what its tours cost in their own units, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.formats.dataset import Array, Block
from cnf_cli.problems.distance import distance_matrix
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.load import whole_units
from cnf_cli.recipe.sections import Normalise

CVRPLIB_WIDTH = 1000.0
"""The published evaluation divides the X instances' coordinates by this."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """One block as a policy is shown it: shown = (given - low) / width, for places and for costs of a matrix."""

    block: Block
    """As the user gave it."""
    instances: Instances
    """As a policy is shown it."""
    low: Array
    """(b, 1, 2) or, for a matrix, (b, 1, 1): what of the user's units lies at 0."""
    width: Array
    """(b, 1, 1): how much of the user's units is 1."""

    def __len__(self) -> int:
        return len(self.block)

    @property
    def plain(self) -> bool:
        """Whether what is shown is what counts: nothing was scaled, and distances are neither rounded nor a matrix
        that the policy does not read."""
        shown = self.block.rule == "euclid" or self.instances.matrix is not None
        return shown and bool((self.low == 0).all() and (self.width == 1).all())

    def cost(self, rows: Int[Tensor, " r"], tours: Int[Tensor, "r p t"]) -> Float[Tensor, "r p"]:
        """What closed tours of these instances of the block cost, in float64, by their own rule and in their units."""
        ways = {row: torch.from_numpy(self._distances(row)) for row in dict.fromkeys(rows.tolist())}
        at = tours.long()
        legs = zip(rows.tolist(), at, at.roll(-1, -1), strict=True)
        return torch.stack([ways[row].to(at.device)[start, end].sum(-1) for row, start, end in legs])

    def _distances(self, row: int) -> Array:
        block = self.block
        if block.matrix is None:
            assert block.xy is not None
            return distance_matrix(block.rule, block.xy[row])
        out: Array = block.matrix[row].copy()
        np.fill_diagonal(out, 0.0)  # standing still is free, whatever the file has there
        return out

    def back(self, made: Instances, rows: Array, extra: dict[str, Array] | None = None) -> Block:
        """The instances `made` of these rows, in the user's units; what did not change is as it was, to the bit.

        Names and rule stay; reference costs and tours are those of other instances now, and are gone.
        """
        was, shown, block = _rows(self.block, rows), self.instances[torch.from_numpy(rows)], self.block
        changed: dict[str, Any] = {}
        for name in ("xy", "matrix"):
            now = getattr(made, name)
            if now is not None:
                there = _array(now) * self.width[rows] + self.low[rows]
                changed[name] = np.where(_same(now, getattr(shown, name)), was[name], there)
        if made.demand is not None and made.capacity is not None:
            units = _array(whole_units(made.demand, made.capacity)[0])
            assert shown.demand is not None
            changed["demand"] = np.where(_same(made.demand, shown.demand), was["demand"], units)
        names = tuple(block.names[row] for row in rows)
        return replace(block, **{**was, **changed}, names=names, cost=None, tour=None, proved=None, extra=extra or {})

    def clean(self, rows: Array) -> dict[str, Array]:
        """What the user gave of these rows, by name: places, demands or costs."""
        return {name: value for name, value in _rows(self.block, rows).items() if name != "capacity"}


def frame(block: Block, how: Normalise, depots: int) -> tuple[Array, Array]:
    """(low, width) for each map of a block, which does not depend on what other maps lie in it.

    auto: as they are where they lie in the unit square and are unrounded (generated and adversarial sets), else fit.
    fit: moved and scaled to fill the square, one scale for both axes. published: as the method's own benchmark script
    does it, TSPLIB divided by the largest coordinate without a shift, CVRPLIB by 1000.
    """
    assert block.xy is not None
    low, high = block.xy.min(1, keepdims=True), block.xy.max(1, keepdims=True)
    extent = (high - low).max(-1, keepdims=True)
    least, most = low.min(-1, keepdims=True), high.max(-1, keepdims=True)
    kept = np.zeros_like(extent, dtype=bool)
    width = np.ones_like(extent)
    if how == "auto" and block.rule == "euclid":
        kept = (least >= 0) & (most <= 1)
    if how == "published" and block.rule == "euc_2d":
        width = np.full_like(most, CVRPLIB_WIDTH) if depots else most
        kept = (least >= 0) & (most <= width)
    width = np.where(kept, width, extent)
    return np.where(kept, 0.0, low), np.where(width > 0, width, 1.0)


def _rows(block: Block, rows: Array) -> dict[str, Array]:
    given = {name: getattr(block, name) for name in ("xy", "demand", "capacity", "matrix")}
    return {name: value[rows] for name, value in given.items() if value is not None}


def _same(now: Tensor, shown: Tensor) -> Array:
    out: Array = _array(now) == _array(shown)
    return out


def _array(tensor: Tensor) -> Array:
    out: Array = tensor.detach().cpu().double().numpy()
    return out
