"""Who gets a row: the model that is best at it, by a rule for ties, or one that has not had its share yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from cnf_cli.engine.random import draw, streams
from cnf_cli.policies.run import SAME

Units = NDArray[np.int64]


def lots(seed: Int[Tensor, "1"], rows: int, models: int) -> Float[Tensor, "N m"]:
    """A number in [0, 1) for every row and model, drawn by counting: seed, row and model decide it and nothing else."""
    stream = streams(seed, torch.arange(rows, device=seed.device))
    return torch.stack([draw(stream, j)[0] for j in range(models)], 1)


def winners(cost: Float[Tensor, "N m"], ties: str, lot: Float[Tensor, "N m"] | None = None) -> Int[Tensor, " N"]:
    """Each row's best model; of several that are equally good the `first`, a `draw`n or the `least-loaded` one."""
    if ties == "first":
        return cost.argmin(1)
    assert lot is not None, "ties are settled by lot"
    drawn = lot.masked_fill(~tied(cost), -1.0)
    return _least_loaded(drawn) if ties == "least-loaded" else drawn.argmax(1)


def tied(cost: Float[Tensor, "N m"]) -> Bool[Tensor, "N m"]:
    """True at the models whose cost on the row is the lowest but for rounding."""
    return cost <= cost.amin(1, keepdim=True) * (1 + SAME)


def _least_loaded(drawn: Float[Tensor, "N m"]) -> Int[Tensor, " N"]:
    """Rows with one best model first, then, in drawn order, each row to the one of its best that has fewest rows."""
    winner, load = drawn.argmax(1).cpu(), [0] * drawn.shape[1]
    choices = drawn.cpu().tolist()
    for row in ((drawn >= 0).sum(1) - drawn.amax(1)).argsort().tolist():
        own = [j for j, lot in enumerate(choices[row]) if lot >= 0]
        winner[row] = min(own, key=lambda j: (load[j], -choices[row][j]))
        load[winner[row]] += 1
    return winner.to(drawn.device)


def balanced(cost: Float[Tensor, "N m"], lot: Float[Tensor, "N m"]) -> Int[Tensor, " N"]:
    """A model for each row, so that all models have equally many and the rows' costs add up to the least possible.

    Which of several such answers, and who takes the rows that are left over, is settled by lot.
    """
    rows, models = cost.shape
    row, model = lot.amax(1).argsort().cpu(), lot.amax(0).argsort().cpu()
    share = [rows // models + (j < rows % models) for j in range(models)]
    dealt = torch.from_numpy(least_cost(_units(cost)[row.numpy()][:, model.numpy()], share))
    out = torch.empty(rows, dtype=torch.long)
    out[row] = model[dealt]
    return out.to(cost.device)


def _units(cost: Float[Tensor, "N m"]) -> Units:
    """Costs as whole numbers, so that sums are exact and rounding decides nothing: ties are equal."""
    best = cost.amin(1, keepdim=True)
    level = torch.where(tied(cost), best, cost).double().cpu()
    unit = float(best.double().mean()) * SAME
    units: Units = (level / unit if unit > 0 else level).round().long().numpy()
    return units


def least_cost(cost: Units, share: Sequence[int]) -> Units:
    """A model for each row such that model j has share[j] of them and the costs add up to the least possible.

    Every row begins at its best model. Then rows move up along the cheapest chain from a model with too many to one
    with too few, until there is none: after every chain the assignment is the cheapest one with its loads (successive
    shortest paths).
    """
    models = cost.shape[1]
    at: Units = cost.argmin(1)
    excess = np.bincount(at, minlength=models) - np.asarray(share)
    price = np.full((models, models), np.inf)
    mover = np.zeros((models, models), np.int64)
    for j in range(models):
        _reprice(cost, at, j, price, mover)
    while (excess > 0).any():
        chain = _cheapest_chain(price, excess)
        moved = [(mover[a, b], b) for a, b in pairwise(chain)]
        for row, model in moved:
            at[row] = model
        excess[chain[0]] -= 1
        excess[chain[-1]] += 1
        for j in chain:
            _reprice(cost, at, j, price, mover)
    return at


def _reprice(cost: Units, at: Units, j: int, price: NDArray[np.float64], mover: Units) -> None:
    """What it costs to move one row from model j to each other, and which row that is, are up to date."""
    own = np.flatnonzero(at == j)
    price[j], mover[j] = np.inf, 0
    if len(own):
        more = cost[own] - cost[own, j][:, None]
        cheapest = more.argmin(0)
        price[j], mover[j] = more.min(0), own[cheapest]
    price[j, j] = 0


def _cheapest_chain(price: NDArray[np.float64], excess: Units) -> list[int]:
    """Models from one with too many rows to one with too few, along which moving a row each costs least."""
    models = len(price)
    far = np.where(excess > 0, 0.0, np.inf)
    before = np.full(models, -1)
    for _ in range(models):  # Bellman and Ford: moves back may save something, so prices can be negative
        through = far[:, None] + price
        best = through.argmin(0)
        better = through[best, np.arange(models)] < far
        if not better.any():
            break
        far, before = np.where(better, through.min(0), far), np.where(better, best, before)
    chain = [int(np.where(excess < 0, far, np.inf).argmin())]
    while before[chain[0]] >= 0:
        chain.insert(0, int(before[chain[0]]))
    return chain
