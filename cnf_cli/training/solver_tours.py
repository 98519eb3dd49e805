"""Tours by a solver for the first instances of a training run: solved some steps ahead, in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cnf_cli.errors import RecipeError
from cnf_cli.evaluation.references import Ask, answers, instances_of
from cnf_cli.formats.tours import split_routes
from cnf_cli.pipeline import ranks
from cnf_cli.pipeline.job import Job, Silent, derived_seed
from cnf_cli.policies.imitate import closed_tours, depot_tours
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.solvers.base import Answer, Failure, SolverError
from cnf_cli.solvers.run import describe_choice, require

LABELLERS = {"tsp": "elkai", "cvrp": "hgs"}
"""Solvers that need a few milliseconds and give the same tour every time."""
AHEAD = 2048
"""Instances solved at once: worker processes take a while to start."""


def labeller(wanted: str, problem: str) -> str:
    """The solver that labels this problem's instances, installed here."""
    kind = LABELLERS.get(problem) if wanted == "auto" else wanted
    if kind is None:
        raise RecipeError(
            f"pretrain.warm_start: no solver is quick and repeatable on {problem}",
            hint="name one with --set pretrain.label_solver=KIND (`cnf solvers`), or leave warm_start at 0",
        )
    require(kind, problem)
    return kind


class Labels:
    """The solver's tours of every step's instances; kept in the work folder, so that a resumed run has the same."""

    def __init__(self, job: Job, problem: BaseProblem, draw: Callable[[int], Instances]) -> None:
        """`draw` gives a step's instances, always the same; the recipe says how many steps have labels."""
        section = job.section("pretrain")
        self.problem, self.draw, self.seed = problem, draw, section.seed
        self.job = replace(job, bars=Silent())  # a bar for each block would fill the screen
        self.kind = labeller(section.label_solver, problem.kind)
        self.steps = -(-min(section.warm_start, section.instances) // section.batch_size)
        self.ahead = max(1, AHEAD // section.batch_size)
        self._block = -1
        self._tours: list[list[tuple[int, ...]]] = []
        job.bars.say(f"labels: {describe_choice(self.kind, problem.kind)}")

    def tours(self, step: int, starts: Int[Tensor, " p"]) -> tuple[Int[Tensor, "b p t"], Bool[Tensor, "b p"]]:
        """The solver's tours of a step's instances as the decoder would make them, and which of those to learn."""
        rng = torch.Generator().manual_seed(derived_seed(self.seed, "labels", step, ranks.rank()))
        block = step // self.ahead
        if block != self._block:
            self._tours, self._block = self._solve(block), block
        labels = self._tours[step - block * self.ahead]
        if self.problem.depots:
            return depot_tours([split_routes(walk) for walk in labels], starts, rng)
        # A matrix may not be symmetric.
        return closed_tours(torch.tensor(labels), starts, rng, reverse=self.problem.kind == "tsp")

    def _solve(self, block: int) -> list[list[tuple[int, ...]]]:
        steps = range(block * self.ahead, min((block + 1) * self.ahead, self.steps))
        drawn = [self.draw(step) for step in steps]
        given = [one for inst in drawn for one in instances_of(self.problem.kind, self.problem.to_block(inst))]
        nodes = max(inst.nodes for inst in drawn)
        ask = Ask(self.kind, quick(self.kind, nodes), jobs=self.job.runtime.threads)
        found = iter(_tour(outcome) for outcome in answers(given, ask, self.job))
        return [[next(found) for _ in range(len(inst))] for inst in drawn]


def quick(kind: str, nodes: int) -> dict[str, Any]:
    """Settings good enough to learn from: on ten CVRP50 instances HGS ended 0.3% above 2000 iterations."""
    return {"hgs": {"iterations": max(20, nodes)}, "elkai": {"runs": 1}}.get(kind, {})


def _tour(outcome: Answer | Failure) -> tuple[int, ...]:
    if isinstance(outcome, Failure):
        raise SolverError(
            f"a training instance has no label: {outcome.note[:300]}", hint="--set pretrain.label_solver=KIND"
        )
    return outcome.tour
