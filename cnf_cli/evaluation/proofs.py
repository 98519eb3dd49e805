"""Every answer of an evaluation and of a labelling against every proof there is: none may beat one (promise 22)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cnf_cli.formats.dataset import Array, Block, Dataset
from cnf_cli.problems.proof import beaten, contradiction, rounding

Flags = NDArray[np.bool_]
Proof = tuple[Array, Flags]
"""Of a block: costs, and which of them are proved optimal."""


def reference_proof(block: Block) -> Proof:
    """What the block's own reference claims."""
    cost = np.full(len(block), np.nan) if block.cost is None else block.cost
    proved = np.zeros(len(block), bool) if block.proved is None else block.proved.astype(bool)
    return cost, proved & np.isfinite(cost)


def check_answers(
    data: Dataset, methods: Sequence[str], proofs: Mapping[str, Sequence[Proof]], *, claimed: bool = False
) -> None:
    """An error unless no method's cost in the blocks' `extra`, nor the reference's, lies below a proved optimum.

    `claimed`: the reference's proofs are those of a user's file.
    """
    reference = f"the reference ({data.solver or 'unnamed'}{', of its file' * claimed})"
    for number, block in enumerate(data.blocks):
        found = {name: block.extra.get(f"cost_{k}") for k, name in enumerate(methods)}
        answers = {name: cost.min(1) for name, cost in found.items() if cost is not None}
        if block.cost is not None:
            answers[reference] = block.cost
        claims = {reference: reference_proof(block), **{who: each[number] for who, each in proofs.items()}}
        for prover, proof in claims.items():
            for who, cost in answers.items():
                if who != prover:
                    check(block, (who, cost), (prover, proof))


def check(block: Block, answer: tuple[str, Array], proof: tuple[str, Proof]) -> None:
    """An error that names both, unless the answers' costs of the block's instances are at or above what is proved."""
    (who, cost), (prover, (optimum, proved)) = answer, proof
    for i in np.flatnonzero(proved & (cost < optimum)):
        if beaten(float(cost[i]), float(optimum[i]), _rounding(block, int(i))):
            name = block.names[i] or f"instance {i}"
            raise contradiction(name, who, float(cost[i]), prover, float(optimum[i]))


def _rounding(block: Block, i: int) -> float:
    xy = None if block.xy is None else block.xy[i]
    return rounding(block.nodes, xy=xy, matrix=None if block.matrix is None else block.matrix[i], rule=block.rule)
