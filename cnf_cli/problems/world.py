"""The rules of a rollout as plain tensors: all that an engine needs to know of a problem."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.problems.load import Loads, loads


@dataclass(frozen=True)
class World:
    """The rules a rollout obeys.

    demand is None: visit every node once, from each start (TSP, ATSP); a tour is n nodes, its start first.
    demand is given: node 0 is the depot (CVRP); a tour is 0, start, ..., 0, padded with zeros.
    """

    starts: Int[Tensor, " p"]
    """The node each of the p rollouts visits first (after the depot, where there is one)."""
    demand: Float[Tensor, "b n"] | None = None
    """Share of the capacity, as the policy reads it."""
    capacity: Float[Tensor, " b"] | None = None
    """Capacity in units; None where shares are all that is known."""

    def loads(self) -> Loads:
        """What the vehicles are filled with: a node is allowed while the load with its demand is within the limit."""
        assert self.demand is not None
        return loads(self.demand, self.capacity)
