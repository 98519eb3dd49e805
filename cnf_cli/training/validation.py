"""The fixed sets on which training is watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cnf_cli import plugins
from cnf_cli.evaluation.answers import first_of
from cnf_cli.evaluation.references import reference_costs
from cnf_cli.formats import dataset
from cnf_cli.pipeline.job import Artifact, Job, derived_seed
from cnf_cli.problems.base import BaseProblem
from cnf_cli.recipe.sections import PretrainSection, TrainSection
from cnf_cli.stages.attack import for_sets
from cnf_cli.stages.attacked import attack_all
from cnf_cli.training.loop import Validation
from cnf_cli.training.machine import Setup


def validation_set(job: Job, problem: BaseProblem, section: PretrainSection | TrainSection) -> Validation | None:
    """The artifact the user named, or fresh instances; with references where they are known or quick to get."""
    count, augment = section.validation_count, section.validation_augment
    if "validation" in job.inputs:
        return from_artifact(job.inputs["validation"], problem, count, augment)
    if not count:
        return None
    clean = problem.sample(count, rng=torch.Generator().manual_seed(derived_seed(section.seed, "validation")))
    blocks = [problem.to_block(clean)]
    return Validation(problem.scaled(blocks), reference_costs(problem, blocks, job), augment)


def from_artifact(artifact: Artifact, problem: BaseProblem, count: int, augment: int) -> Validation:
    """The first instances of a stored data set, of every size, with their stored reference costs."""
    data = dataset.load(artifact.path("data.h5"))
    blocks = first_of(data, count or len(data)).blocks
    costs = [np.full(len(block), np.nan) if block.cost is None else block.cost for block in blocks]
    return Validation(problem.scaled(blocks), torch.from_numpy(np.concatenate(costs)), augment)


def adversarial_set(
    job: Job, problem: BaseProblem, models: Sequence[Any], setup: Setup, clean: Validation | None
) -> Validation | None:
    """The validation set attacked once, through the model that training starts from: fixed for the whole run."""
    if clean is None:
        return None
    section = for_sets(job.section("attack"))
    attack = plugins.create("attacks", section, problem, setup.engine)
    made = attack_all(job, attack, [models], [one.instances for one in clean.sets], section.seed)
    sets = [
        replace(one, block=one.back(hard, np.arange(len(one))), instances=hard)
        for one, (hard, _) in zip(clean.sets, made, strict=True)
    ]
    return Validation(sets, reference_costs(problem, [one.block for one in sets], job), clean.augment)
