"""Train a policy from scratch on clean instances: by its own rollouts, after a warm start on solver tours if asked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from cnf_cli.errors import RecipeError
from cnf_cli.pipeline.job import Job, Result, derived_seed
from cnf_cli.pipeline.stage import Named, Stage, Task
from cnf_cli.recipe import Recipe
from cnf_cli.recipe.sections import Section

if TYPE_CHECKING:
    from torch import Tensor

    from cnf_cli.policies.run import Sampled
    from cnf_cli.problems.base import BaseProblem
    from cnf_cli.problems.instances import Instances
    from cnf_cli.recipe.sections import PretrainSection
    from cnf_cli.store import Manifest
    from cnf_cli.training.machine import Setup
    from cnf_cli.training.resume_state import Progress

VERSION = 1


class WatchSection(Section):
    """How a validation set that no problem drew is read."""

    own_units: bool = Field(True, description="all sizes, scaled as a policy reads them, costs in their own units")


def task(
    recipe: Recipe, init: Manifest | None = None, validation: Manifest | None = None, *, own_units: bool = False
) -> Task:
    """The recipe's pretrained policy, from scratch or from another artifact's weights.

    `own_units`: no problem drew `validation` (`data.drawn`); what was measured on such data before was unscaled.
    """
    inputs: dict[str, Task | Manifest | Named] = {}
    inputs |= {"init": init} if init else {}
    inputs |= {"validation": validation} if validation else {}
    inputs |= {f"labels-{k}": Named(name) for k, name in enumerate(recipe.pretrain.labels)}
    if recipe.pretrain.labels and recipe.pretrain.warm_start:
        raise RecipeError("pretrain.labels and pretrain.warm_start exclude each other", hint="leave one of them out")
    sections = recipe.sections("problem", "policy", "pretrain")
    sections |= {"validation": WatchSection()} if own_units else {}
    return Task(STAGE, sections, inputs, alias=f"{recipe.name}/pretrain", command=f"cnf pretrain {recipe.source}")


def run(job: Job) -> Result:
    """Writes model.safetensors and metrics.jsonl."""
    from cnf_cli.training.machine import set_up

    with set_up(job.runtime) as setup:
        return _train(job, setup)


def _train(job: Job, setup: Setup) -> Result:
    import torch

    from cnf_cli.policies.losses import likelihood_loss, rollout_loss
    from cnf_cli.training.loop import Loop, make_optimizer, scheduled_rate, set_rate
    from cnf_cli.training.machine import network
    from cnf_cli.training.solver_tours import Labels
    from cnf_cli.training.stored_policies import make_policy, make_problem, save_models
    from cnf_cli.training.stored_tours import Labelled
    from cnf_cli.training.validation import validation_set

    section, problem_section, policy_section = (job.section(name) for name in ("pretrain", "problem", "policy"))
    problem = make_problem(problem_section)
    policy = make_policy(policy_section, problem).init(
        torch.Generator().manual_seed(derived_seed(section.seed, "init"))
    )
    if "init" in job.inputs:
        _start_from(policy, job)
    policy.to(setup.device).train()
    learner = network(policy, job.runtime, setup)
    optimizer = make_optimizer(section, policy)
    draw = partial(drawn, section, problem, setup)
    labels = Labels(job, problem, lambda step: draw(step).inst) if section.warm_start else None
    labelled = Labelled(job, problem, setup) if section.labels else None
    validation = validation_set(job, problem, section)
    job.provenance["engine"] = setup.engine.name
    job.provenance["bytes_depend_on"] = setup.steady(policy)

    def update(at: Progress, size: int) -> dict[str, float]:
        rate = scheduled_rate(section, at.instances)
        set_rate(optimizer, rate)
        optimizer.zero_grad(set_to_none=True)
        numbers = {"loss": 0.0, "cost": 0.0}
        for weight, (loss, seen) in losses(at):
            (weight * loss).backward()  # type: ignore[no-untyped-call]
            numbers = {"loss": numbers["loss"] + weight * float(loss.detach()), "cost": float(seen.best.mean())}
        if section.grad_clip:
            torch.nn.utils.clip_grad_norm_(policy.parameters(), section.grad_clip)
        optimizer.step()
        return {**numbers, "lr": rate}

    def losses(at: Progress) -> Iterator[tuple[float, tuple[Tensor, Sampled]]]:
        """What a step descends, part by part with its weight; the last part's mean cost is written down."""
        imitation, own = shares(section, at.instances) if labelled else (0.0, 1.0)
        if labelled and imitation:
            lesson = labelled.lesson(at.step)
            yield imitation, taught(lesson.inst, lesson.tours, lesson.good)
        if own:
            batch = draw(at.step)
            if labels and at.instances < section.warm_start:
                yield own, taught(batch.inst, *labels.tours(at.step, problem.world(batch.inst).starts))
            else:
                inst, seeds = batch.inst.to(setup.device), batch.seeds.to(setup.device)
                yield own, rollout_loss(section, learner, problem, inst, setup.engine, seeds, batch.starts)

    def taught(inst: Instances, tours: Tensor, good: Tensor) -> tuple[Tensor, Sampled]:
        where = setup.device
        return likelihood_loss(learner, problem, inst.to(where), setup.engine, tours.to(where), good.to(where))

    def validate(_: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
        found = validation.measure([policy], problem, setup.engine, setup.device) if validation else {}
        gap = {"gap_percent": found.pop("gap_percent")} if "gap_percent" in found else {}
        values = {f"validation_{name}": value for name, value in found.items()}
        # Stored references follow from the key; those asked of a solver on the way depend on what is installed.
        return ({**values, **gap}, {}) if "validation" in job.inputs else (values, gap)

    loop = Loop(job, setup, section, {"model": policy}, {"model": optimizer}, ("cost", "lr"))
    at = loop.run(f"pretraining {problem_section.kind}{problem_section.n}", update, validate)
    files = save_models(job.work, [policy], problem_section, policy_section)
    checks = {"problem": problem_section.kind, "models": 1, "instances": at.instances}
    return Result({**files, "metrics.jsonl": job.work / "metrics.jsonl"}, checks)


class Batch(NamedTuple):
    """What one step trains on."""

    inst: Instances
    seeds: Tensor
    starts: Tensor | None
    """The nodes rollouts begin at; None = all."""


def drawn(section: PretrainSection, problem: BaseProblem, setup: Setup, step: int) -> Batch:
    """This rank's share of a step's batch: it follows from the recipe's seed and the step's number alone."""
    import torch

    from cnf_cli.engine.random import seeds_from
    from cnf_cli.training.loop import fresh

    done = step * section.batch_size
    count = min(section.batch_size, section.instances - done)
    rng = torch.Generator().manual_seed(derived_seed(section.seed, "pretrain", step))
    n = size_at(section.sizes, done, section.instances)
    if section.sizes and section.sizes_mixed:
        n = section.sizes[int(torch.randint(len(section.sizes), (), generator=rng))]
    clean = fresh(problem, section, count, rng=rng, n=n)
    seeds, mine, starts = seeds_from(rng, count), setup.mine(count), None
    if section.early_starts and done < section.early_share * section.instances:
        every = problem.world(clean).starts
        starts = every[torch.randperm(len(every), generator=rng)[: section.early_starts]].sort().values
    return Batch(clean[mine], seeds[mine], starts)


def shares(section: PretrainSection, done: int) -> tuple[float, float]:
    """What labels and own rollouts count after `done` instances: first labels alone, then a slow change of both."""
    alone = section.label_share * section.instances
    way = max(0.0, done - alone) / max(1.0, section.instances - alone)
    return 1 - way * (1 - section.label_end), way * section.rollout_weight


def size_at(sizes: tuple[int, ...], done: int, total: int) -> int | None:
    """The number of nodes to train on now: equal shares of the run at each size of the curriculum."""
    return sizes[min(len(sizes) - 1, done * len(sizes) // max(1, total))] if sizes else None


def _start_from(policy: Any, job: Job) -> None:
    from cnf_cli.training.stored_policies import fit, load_models

    other = load_models(job.inputs["init"])
    fit(policy, other.policies[0].state_dict(), f"artifact {job.inputs['init'].manifest.key[:12]}")


STAGE = Stage(
    "pretrain",
    VERSION,
    run,
    title=lambda task: f"pretrain a policy on {task.dumped()['pretrain']['instances']:,} others",
    command=lambda _, recipe: f"cnf pretrain {recipe}" if recipe else "",
    distributed=True,
)
