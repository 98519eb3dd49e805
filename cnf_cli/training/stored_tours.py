"""Stored data sets with a solver's tours, read for training: batch by batch, in symmetric copies, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cnf_cli.errors import DataError
from cnf_cli.formats import dataset
from cnf_cli.formats.tours import split_routes
from cnf_cli.pipeline.job import Artifact, Job, derived_seed
from cnf_cli.policies.imitate import closed_tours, depot_tours
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PretrainSection
from cnf_cli.training.machine import Setup

PREFIX = "labels-"
"""What a stage's inputs with labels are called, with their number."""
COPIES = 8


@dataclass(frozen=True)
class Lesson:
    """Instances and the solver's tours of them as the decoder would make them, one from every start."""

    inst: Instances
    tours: Int[Tensor, "b p t"]
    good: Bool[Tensor, "b p"]
    """Which of the tours are to be learned."""


@dataclass(frozen=True)
class Part:
    """Instances of one size as the policy sees them, and the solver's tours, padded with -1."""

    inst: Instances
    tours: Int[Tensor, "b t"]


class Labelled:
    """All labelled instances of some data sets. A batch is of one size; every epoch shuffles them anew.

    What a step reads follows from the recipe's seed and the step's number alone.
    """

    def __init__(self, job: Job, problem: BaseProblem, setup: Setup) -> None:
        self.problem, self.setup = problem, setup
        self.section: PretrainSection = job.section("pretrain")
        names = sorted((name for name in job.inputs if name.startswith(PREFIX)), key=lambda name: (len(name), name))
        self.parts = [part for name in names for part in _parts(job.inputs[name], problem)]
        self._epoch = -1
        self._plan: list[tuple[Part, Int[Tensor, " b"]]] = []

    def lesson(self, step: int) -> Lesson:
        """This rank's share of what a step learns: each instance as one of its symmetric copies."""
        part, rows = self._rows(step)
        rows = rows[self.setup.mine(len(rows))]
        rng = torch.Generator().manual_seed(derived_seed(self.section.seed, "lesson", step, self.setup.rank))
        copy = torch.randint(0, COPIES, (len(rows),), generator=rng)
        inst = self.problem.augment(part.inst[rows], COPIES)[torch.arange(len(rows)) * COPIES + copy]
        starts, tours = self.problem.world(inst).starts, part.tours[rows]
        if self.problem.depots:
            walks = [split_routes([node for node in tour if node >= 0]) for tour in tours.tolist()]
            return Lesson(inst, *depot_tours(walks, starts, rng))
        reverse = self.problem.kind == "tsp"  # a matrix may not be symmetric
        return Lesson(inst, *closed_tours(tours.long(), starts, rng, reverse=reverse))

    def _rows(self, step: int) -> tuple[Part, Int[Tensor, " b"]]:
        """Where a step's batch lies, and its rows."""
        size = self.section.batch_size
        whole = [max(1, len(part.tours) // size) for part in self.parts]
        epoch, at = divmod(step, sum(whole))
        if epoch != self._epoch:
            rng = torch.Generator().manual_seed(derived_seed(self.section.seed, "lessons", epoch))
            plan = []
            for part, count in zip(self.parts, whole, strict=True):
                order = torch.randperm(len(part.tours), generator=rng)
                # A part of fewer rows than a batch is read several times over.
                plan += [(part, order[torch.arange(k * size, (k + 1) * size) % len(order)]) for k in range(count)]
            self._plan = [plan[int(k)] for k in torch.randperm(len(plan), generator=rng)]
            self._epoch = epoch
        return self._plan[at]


def _parts(artifact: Artifact, problem: BaseProblem) -> list[Part]:
    """The data set's instances, size by size, without those that have no tour."""
    called = artifact.manifest.key[:12]
    if "data.h5" not in artifact.manifest.outputs:
        raise DataError(f"pretrain.labels: {called} is not a data set", hint="`cnf ls` lists artifacts")
    found = dataset.load(artifact.path("data.h5"))
    if found.problem != problem.kind:
        raise DataError(
            f"pretrain.labels: {called} holds {found.problem}, and the policy is for {problem.kind}",
            hint=f"`cnf data generate {problem.kind}` and `cnf label` make labels for it",
        )
    parts = []
    for block in found.blocks:
        some = np.zeros(0, int) if block.tour is None else np.flatnonzero((block.tour >= 0).any(1))
        if len(some) and block.tour is not None:
            rows = torch.from_numpy(some)
            parts.append(Part(problem.scaled([block])[0].instances[rows], torch.from_numpy(block.tour[some])))
    if not parts:
        raise DataError(
            f"pretrain.labels: {called} has no tours to learn from", hint=f"`cnf label {called}` asks a solver for them"
        )
    return parts
