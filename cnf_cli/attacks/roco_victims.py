"""Whoever answers a matrix with a tour: a policy, a reference solver, or any callable. Every answer is one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.engine.base import Engine
from cnf_cli.policies.run import rollout
from cnf_cli.problems.instances import Instances

Victim = Callable[[Instances], tuple[Int[Tensor, "b n"], Float[Tensor, " b"]]]
"""From instances to (a tour of each, its cost): all that this attack ever asks."""
_ROOM = 1 << 19
"""Rollouts times nodes held at once."""


def victim_of(
    target: Any, problem: Any, engine: Engine, *, augment: int = 1, seeds: Int[Tensor, " b"] | None = None
) -> Victim:
    """The victim behind a policy, the name of a reference solver, or a callable, which is its own."""
    if isinstance(target, str):  # first: text has an `encode` too
        return SolverVictim(target)
    if hasattr(target, "encode"):
        return PolicyVictim(target, problem, engine, augment, seeds)
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise TypeError(f"{target!r} is neither a policy, nor a solver's name, nor a callable")


class PolicyVictim:
    """The best of a policy's rollouts over all starts and `augment` copies; greedy without a seed."""

    def __init__(self, policy: Any, problem: Any, engine: Engine, augment: int, seeds: Int[Tensor, " b"] | None):
        self.policy, self.problem, self.engine, self.augment, self.seeds = policy, problem, engine, augment, seeds

    def __call__(self, inst: Instances) -> tuple[Int[Tensor, "b n"], Float[Tensor, " b"]]:
        """The same matrix with the same one-hot seed gets the same tour, however often and with whatever it is asked.

        One sampling seed serves all: what differs between two answers is the matrix, not the luck of the draw.
        """
        n, k = inst.nodes, self.augment
        most = max(1, _ROOM // (n * n * k))
        tours, costs = [], []
        for low in range(0, len(inst), most):
            few = inst[low : low + most]
            copies = self.problem.augment(few, k) if k > 1 else few
            seeds = None if self.seeds is None else self.seeds[:1].expand(len(copies))
            tour, cost = rollout(self.policy, self.problem, copies, self.engine, seeds=seeds)
            tour, cost = tour.reshape(len(few), -1, n), cost.reshape(len(few), -1)
            best = cost.argmin(1, keepdim=True)
            costs.append(cost.gather(1, best)[:, 0])
            tours.append(tour.gather(1, best[..., None].expand(-1, 1, n))[:, 0])
        return torch.cat(tours), torch.cat(costs)


class SolverVictim:
    """A reference solver of `cnf solvers`, one matrix after another in this process."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, inst: Instances) -> tuple[Int[Tensor, "b n"], Float[Tensor, " b"]]:
        from cnf_cli.solvers.base import Instance
        from cnf_cli.solvers.run import solve_one

        assert inst.matrix is not None
        exact = inst.matrix.detach().cpu().double().numpy()
        answers = [solve_one(Instance("atsp", matrix=matrix), self.kind) for matrix in exact]
        tours = torch.tensor([answer.tour for answer in answers], dtype=torch.int64)
        costs = torch.tensor([answer.cost for answer in answers], dtype=torch.float32)
        return tours.to(inst.device), costs.to(inst.device)


class Counted:
    """A victim that counts what it is asked."""

    def __init__(self, victim: Victim) -> None:
        self.victim, self.calls = victim, 0

    def __call__(self, inst: Instances) -> tuple[Int[Tensor, "b n"], Float[Tensor, " b"]]:
        """The victim's answers; a wrong number of them is an error here, not later."""
        tours, costs = self.victim(inst)
        self.calls += len(inst)
        if tours.shape != (len(inst), inst.nodes) or costs.shape != (len(inst),):
            raise ValueError(
                f"the victim answered {len(inst)} matrices with tours {tuple(tours.shape)}, costs {tuple(costs.shape)}"
            )
        return tours.to(inst.device).long(), costs.to(inst.device).float()
