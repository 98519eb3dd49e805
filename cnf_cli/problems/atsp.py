"""Asymmetric travelling salesman: visit every node once and return, by a matrix of costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from cnf_cli.errors import DataError
from cnf_cli.problems import sampling
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.project import DemandRule, How
from cnf_cli.problems.scaled import Scaled
from cnf_cli.recipe.sections import Normalise, ProblemSection

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Block

UNITS = 1_000_000
"""Generated costs are whole numbers below this, divided by it."""
_ODD = 0x632BE59BD9B4E019
"""Any large odd number: products with it wrap around and differ for different factors."""


class Params(ProblemSection):
    """Keys of `[problem]` for kind = "atsp"."""

    default_policy: ClassVar[str] = "matnet"
    copies: ClassVar[range] = range(1, 129)
    usual_copies: ClassVar[int] = 16
    kind: str = Field("atsp", description="problem plugin: `cnf list problems`")
    closure: bool = Field(
        True, description='close generated costs under the triangle inequality ("tmat"), as published'
    )


class Problem(BaseProblem):
    """ATSP with costs in [0, 1]."""

    kind = "atsp"
    feature_groups = {"node": 2}  # noqa: RUF012
    query = ("first", "last")
    movable = ("matrix",)

    def __init__(self, params: Params) -> None:
        self.params = params

    def sample(self, count: int, *, rng: torch.Generator, n: int | None = None, dist: str | None = None) -> Instances:
        """`count` matrices of n nodes: uniform whole costs, closed; other distributions are distances on such maps."""
        n, dist = n or self.params.n, dist or self.params.dist
        if dist != "uniform":
            xy = sampling.coordinates(dist, count, n, rng)
            return seeded(super().distances(Instances(xy)))
        cost = torch.randint(0, UNITS, (count, n, n), generator=rng, device=rng.device, dtype=torch.int32)
        cost.diagonal(dim1=1, dim2=2).zero_()
        if self.params.closure:
            cost = close(cost)
        return seeded(cost.double().div(UNITS).float())

    def features(self, inst: Instances) -> dict[str, Float[Tensor, "b n 2"]]:
        """Mean cost of leaving each node and of reaching it; a policy that reads the matrix itself sees more."""
        matrix, others = self.distances(inst), max(1, inst.nodes - 1)
        return {"node": torch.stack([matrix.sum(2), matrix.sum(1)], -1) / others}

    def masks(self, inst: Instances, names: Sequence[str]) -> dict[str, Bool[Tensor, "b n n"]]:
        """All costs may change but the diagonal, which no tour uses."""
        self._known(names)
        if not names:
            return {}
        off = ~torch.eye(inst.nodes, dtype=torch.bool, device=inst.device)
        return {"matrix": off.expand(len(inst), -1, -1)}

    def distances(self, inst: Instances) -> Float[Tensor, "b n n"]:
        """The matrix itself."""
        assert inst.matrix is not None
        return inst.matrix

    def augment(self, inst: Instances, k: int = 8) -> Instances:
        """k copies of each instance, copy a of instance i at i * k + a; copies differ in their seed only.

        Copy a's seed follows from the instance's own and from a alone: neither the number of copies, nor the instances
        they share a batch with, changes what a policy draws for it. Copy 0 keeps the instance's seed.
        """
        if k not in self.params.copies:
            raise ValueError(f"there are {self.params.copies[-1]} seeds, not {k}")
        inst = with_seed(inst)
        copies = inst.repeat_interleave(k)
        assert copies.seed is not None
        copy = torch.arange(k, device=inst.device).repeat(len(inst))
        return copies.with_(seed=copies.seed + copy * _ODD)

    def project(
        self,
        inst: Instances,
        names: Sequence[str],
        how: How = "minmax",
        demand: DemandRule = "released",
        *,
        was: Instances | None = None,
    ) -> Instances:
        """Costs in [0, 1] again: all of an instance's stretched together, only if some left it, clipped, or left."""
        if how == "none" or not self.masks(inst, names):
            return inst
        matrix = self.distances(inst)
        off = self.masks(inst, names)["matrix"]
        clipped = matrix.clamp(0, 1)
        if how != "clip":
            low = torch.where(off, matrix, torch.inf).amin((1, 2), keepdim=True)
            extent = torch.where(off, matrix, -torch.inf).amax((1, 2), keepdim=True) - low
            stretched = torch.where(extent > 0, (matrix - low) / torch.where(extent > 0, extent, 1.0), clipped)
            inside = (~off | (matrix == clipped)).flatten(1).all(1)
            keep = inside if how == "if_needed" else torch.zeros_like(inside)
            clipped = torch.where(keep[:, None, None], matrix, stretched)
        return inst.with_(matrix=torch.where(off, clipped, matrix))

    def from_block(self, block: Block) -> Instances:
        """The block's matrices as float32 tensors, as they are stored but for a zero diagonal."""
        if block.matrix is None:
            raise DataError(
                "atsp needs a matrix of costs, and this data has only coordinates", hint="`cnf list problems`"
            )
        if (block.matrix < 0).any():
            row = int(np.argwhere((block.matrix < 0).any((1, 2)))[0][0])
            raise DataError(f"the matrix of instance {row} has a negative cost", hint="add a constant to all its costs")
        if block.demand is not None:
            raise DataError("this data has demands, so it is not an atsp", hint="`cnf list problems`")
        off = ~np.eye(block.nodes, dtype=bool)
        return seeded(torch.from_numpy((block.matrix * off).astype(np.float32)))

    def _scaled(self, block: Block, how: Normalise) -> Scaled:
        """Each matrix divided by its largest cost, which goes into the thousands; with auto only if it is above 1."""
        inst = self.from_block(block)
        largest = self.distances(inst).amax((1, 2), keepdim=True)
        kept = (largest <= 1) if how == "auto" else torch.zeros_like(largest, dtype=torch.bool)
        width = torch.where(kept | (largest <= 0), torch.ones_like(largest), largest)
        low = np.zeros((len(block), 1, 1))
        return Scaled(block, seeded(self.distances(inst) / width), low, width.double().numpy())


def close(cost: Tensor) -> Tensor:
    """Each cost is that of the cheapest way (b, n, n): min_k(D_ik + D_kj) changes nothing any more.

    One pass over k of Floyd and Warshall ends where repeated min-plus products would.
    """
    out = cost.clone()
    for k in range(out.shape[-1]):
        out = torch.minimum(out, out[:, :, k, None] + out[:, None, k, :])
    return out


def symmetric(matrix: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Both directions of every edge cost their mean."""
    return (matrix + matrix.transpose(1, 2)) / 2


def seeded(matrix: Float[Tensor, "b n n"]) -> Instances:
    """Instances whose seeds are a hash of their costs: the same whatever batch, file or device they come through."""
    return Instances(matrix=matrix, seed=content_seed(matrix))


def with_seed(inst: Instances) -> Instances:
    """`inst` with its seeds; those of instances without any are a hash of their costs."""
    if inst.seed is not None:
        return inst
    assert inst.matrix is not None
    return inst.with_(seed=content_seed(inst.matrix))


def content_seed(matrix: Float[Tensor, "b n n"]) -> Int[Tensor, " b"]:
    """A seed that depends on every cost and on its place, and on nothing else; whoever draws from it must mix it."""
    bits = (matrix.detach().float() + 0.0).contiguous().view(torch.int32).flatten(1).long()  # + 0.0: no -0.0
    place = torch.arange(bits.shape[1], device=bits.device)
    return (bits * (2 * place + 1) * _ODD).sum(1)
