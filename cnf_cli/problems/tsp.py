"""Travelling salesman: visit every node once and return, on the plane."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from cnf_cli.problems import sampling
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import ProblemSection


class Params(ProblemSection):
    """Keys of `[problem]` for kind = "tsp"."""

    kind: str = Field("tsp", description="problem plugin: `cnf list problems`")


class Problem(BaseProblem):
    """Euclidean TSP in the unit square."""

    kind = "tsp"
    feature_groups = {"node": 2}  # noqa: RUF012
    query = ("first", "last")
    movable = ("xy",)

    def __init__(self, params: Params) -> None:
        self.params = params

    def sample(self, count: int, *, rng: torch.Generator, n: int | None = None, dist: str | None = None) -> Instances:
        """`count` maps of n nodes."""
        return Instances(sampling.coordinates(dist or self.params.dist, count, n or self.params.n, rng))

    def features(self, inst: Instances) -> dict[str, Float[Tensor, "b k f"]]:
        """The coordinates."""
        assert inst.xy is not None
        return {"node": inst.xy}

    def masks(self, inst: Instances, names: Sequence[str]) -> dict[str, Bool[Tensor, "b n"]]:
        """All nodes may move."""
        self._known(names)
        if not names:
            return {}
        return {"xy": torch.ones(len(inst), inst.nodes, dtype=torch.bool, device=inst.device)}
