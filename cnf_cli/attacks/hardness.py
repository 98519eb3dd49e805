"""How hard an instance provably is for a policy, without a solver: it is beaten by a tour that is already known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.attacks.gradient import Rolled, roll
from cnf_cli.engine.base import Engine
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.instances import Instances, concatenate
from cnf_cli.problems.load import Loads, loads

_COPIES = 3
"""The candidate and two mirror images; with them the choice is nearly that of an exact solver (docs/method.md)."""


class Hardest:
    """Collects candidates for each clean instance and gives back the one that is hardest for the policies together.

    Hardness = (the policies' best greedy cost) / (the cheapest known tour) - 1, never more than the true gap.
    """

    def __init__(self, policies: Sequence[Encoder], problem: Any, engine: Engine) -> None:
        self.policies, self.problem, self.engine = policies, problem, engine
        self.candidates: list[Instances] = []
        self.costs: list[Float[Tensor, " b"]] = []
        self.known: list[Int[Tensor, "b t"]] = []

    def offer(self, inst: Instances) -> Float[Tensor, " b"]:
        """Add one candidate per instance; the policies' best greedy cost on it.

        Greedy tours of its mirror images are learnt too: they are tours of the candidate that the policy missed.
        """
        copies, rows = self.problem.augment(inst, _COPIES), torch.arange(len(inst), device=inst.device) * _COPIES
        rolls = [roll(policy, self.problem, self.engine, copies, None) for policy in self.policies]
        for copy in range(_COPIES):
            self.learn([r.rows(rows + copy) for r in rolls])
        cost = torch.stack([r.best[rows] for r in rolls]).amin(0)
        self.candidates.append(inst.detach())
        self.costs.append(cost)
        return cost

    def learn(self, rolls: Sequence[Rolled]) -> None:
        """Remember each rollout's best tour: it may beat the policy on another candidate."""
        for r in rolls:
            pick = r.cost.argmin(-1)
            self.known.append(r.tours[torch.arange(len(pick), device=pick.device), pick])

    def pick(self) -> tuple[Instances, Float[Tensor, " b"], Float[Tensor, " b"]]:
        """(the hardest candidate of each instance, its cost, its hardness); of equally hard ones the last."""
        hard = torch.stack([self._hardness(i, c) for i, c in zip(self.candidates, self.costs, strict=True)])
        last = hard.shape[0] - 1 - hard.flip(0).argmax(0)
        rows = torch.arange(hard.shape[1], device=hard.device)
        flat = last * hard.shape[1] + rows
        return concatenate(self.candidates)[flat], torch.stack(self.costs)[last, rows], hard[last, rows]

    def _hardness(self, inst: Instances, cost: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        longest = max(tour.shape[1] for tour in self.known)
        # A shorter tour of a problem with a depot ends in zeros, so more zeros change nothing.
        tours = torch.stack([torch.nn.functional.pad(t, (0, longest - t.shape[1])) for t in self.known], 1)
        known = self.problem.cost(inst, tours)
        if inst.demand is not None:
            known = known.masked_fill(~_feasible(loads(inst.demand, inst.capacity), tours), torch.inf)
        cheapest = torch.minimum(known.amin(-1), cost)
        return torch.where(cheapest > 1e-9, cost / cheapest.clamp_min(1e-9) - 1, torch.zeros_like(cost))


def _feasible(loads: Loads, tours: Int[Tensor, "b p t"]) -> Tensor:
    """True where no route of a tour carries more than the capacity: demands differ between candidates."""
    load = loads.demand.new_zeros(tours.shape[:2])
    good = torch.ones_like(load, dtype=torch.bool)
    for node in tours.long().unbind(-1):
        load = torch.where(node == 0, torch.zeros_like(load), load + loads.demand.gather(1, node))
        good &= load <= loads.limit[:, None]
    return good
