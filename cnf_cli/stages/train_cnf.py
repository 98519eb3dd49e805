"""Harden an ensemble: copies of a pretrained policy trained together by the recipe's defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import RecipeError
from cnf_cli.recipe import Recipe
from cnf_cli.stages import pretrain
from cnf_cli.stages.job import Job, Result, derived_seed
from cnf_cli.stages.runner import Task

if TYPE_CHECKING:
    from cnf_cli.stages.setup import Setup
    from cnf_cli.stages.training import Progress
    from cnf_cli.store import Manifest

VERSION = 1
DISTRIBUTED = True


def task(recipe: Recipe, init: Task | Manifest | None = None) -> Task:
    """The recipe's hardened ensemble, from its pretrained policy or from another artifact's weights."""
    policy = init if init is not None else pretrain.task(recipe)
    sections = recipe.sections("problem", "attack", "train")
    command = f"cnf train-cnf {recipe.source}"
    return Task("train_cnf", sections, {"policy": policy}, alias=f"{recipe.name}/train-cnf", command=command)


def run(job: Job) -> Result:
    """Writes model-0.safetensors ... , router.safetensors where there is one, and metrics.jsonl."""
    from cnf_cli.stages.setup import set_up

    section = job.section("train")
    if section.keep == "best" and not section.validation_count:
        raise RecipeError('train.keep = "best" needs train.validation_count', hint="give some, or keep the last models")
    with set_up(job.runtime) as setup:
        return _train(job, setup)


def _train(job: Job, setup: Setup) -> Result:
    import torch

    from cnf_cli import plugins
    from cnf_cli.defences.base import Clock
    from cnf_cli.stages.keep import Average, Best
    from cnf_cli.stages.models import load_models, make_problem, save_models
    from cnf_cli.stages.training import Loop, learning_rate, make_optimizer, set_rate
    from cnf_cli.stages.validation import adversarial_set, validation_set

    section, problem_section, attack_section = (job.section(name) for name in ("train", "problem", "attack"))
    start = load_models(job.inputs["policy"], setup.device)
    problem = make_problem(problem_section)
    models = _copies(job, setup, section.models)
    attack = plugins.create("attacks", attack_section, problem, setup.engine)
    defence = plugins.create("defences", _share(section, setup), problem=problem, engine=setup.engine, attack=attack)
    defence.setup(models, setup.device, torch.Generator().manual_seed(derived_seed(section.seed, "defence")))
    optimizers = [make_optimizer(section, model) for model in models]
    learns = hasattr(attack, "fit")  # an attack that is trained itself
    if learns:
        attack.bind(models)

    clean_set = validation_set(job, problem, section)
    hard_set = adversarial_set(job, problem, start.policies[:1], setup, clean_set)
    job.provenance["engine"] = setup.engine.name

    def update(at: Progress, size: int) -> dict[str, float]:
        rate = learning_rate(section.lr, section.decay_last, section.decay_factor, at.instances, section.instances)
        for optimizer in optimizers:
            set_rate(optimizer, rate)
        rng = torch.Generator().manual_seed(derived_seed(section.seed, "train", at.step))
        clean = problem.sample(size, rng=rng)[setup.mine(size)].to(setup.device)
        clock = Clock(at.step, at.instances // section.epoch_instances, at.instances / section.instances)
        if learns and refit_due(section, at, attack_section.refit_epochs):
            fit_rng = torch.Generator().manual_seed(derived_seed(section.seed, "fit attack", at.step))
            training = problem.sample(attack_section.fit_instances, rng=fit_rng).to(setup.device)
            attack.fit(models, training, rng=fit_rng)
        own = torch.Generator().manual_seed(derived_seed(section.seed, "step", at.step, setup.rank))
        reduce = setup.average if setup.world > 1 else None
        numbers = defence.step(models, optimizers, clean, clock=clock, rng=own, reduce=reduce)
        return {**numbers, "lr": rate}

    average = Average(models, section.average_steps) if section.average_steps else None
    shown = average.means if average else models
    best = Best(job.work / "best.safetensors", shown) if section.keep == "best" else None

    def validate(at: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
        measured = {
            name: instances.measure(shown, problem, setup.engine, setup.device)
            for name, instances in (("clean", clean_set), ("adversarial", hard_set))
            if instances
        }
        if best:
            best.offer(sum(found["cost"] for found in measured.values()), at.instances)
        return _told(measured)

    modules = {f"model-{j}": model for j, model in enumerate(models)} | defence.modules()
    modules |= attack.modules() if learns else {}
    named = {f"model-{j}": optimizer for j, optimizer in enumerate(optimizers)} | defence.optimizers()
    title = f"{section.defence}({section.models}) on {problem_section.kind}{problem_section.n}"
    loop = Loop(job, setup, section, modules, named, ("pool_clean", "pool_local", "lr"), average)
    at = loop.run(title, update, validate)
    kept = best.restore() if best else None

    files = save_models(job.work, shown, problem_section, start.policy_section)
    files |= _save_beside(job, defence.modules())
    checks = {
        "problem": problem_section.kind,
        "models": len(models),
        "instances": at.instances,
        "defence": section.defence,
        **({"kept_at": kept} if kept else {}),
    }
    return Result({**files, "metrics.jsonl": job.work / "metrics.jsonl"}, checks)


def _copies(job: Job, setup: Setup, count: int) -> list[Any]:
    """So many models with the start's weights; an ensemble's models are taken in turn."""
    from cnf_cli.stages.models import load_models

    copies = [load_models(job.inputs["policy"], setup.device).policies for _ in range(count)]
    return [copy[j % len(copy)].train() for j, copy in enumerate(copies)]


def _told(measured: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each set's numbers under its name: (what follows from the key, gaps, which depend on the solvers installed)."""
    values: dict[str, Any] = {}
    gaps: dict[str, Any] = {}
    for name, found in measured.items():
        for key, value in found.items():
            (gaps if key.startswith("gap") else values)[f"{name}_{key}"] = value
    return values, gaps


def _save_beside(job: Job, modules: dict[str, Any]) -> dict[str, Path]:
    """What the defence learned beside the models is in the work folder."""
    from cnf_cli.formats import checkpoint

    files = {f"{name}.safetensors": job.work / f"{name}.safetensors" for name in modules}
    for (name, module), path in zip(modules.items(), files.values(), strict=True):
        checkpoint.save(path, dict(module.state_dict()), {"kind": name})
    return files


def refit_due(section: Any, at: Progress, every: int) -> bool:
    """True in the first step of the run and of every `every`-th epoch after it."""
    epoch, before = (count // section.epoch_instances for count in (at.instances, at.instances - section.batch_size))
    return at.step == 0 or (epoch > before and epoch % every == 0)


def _share(section: Any, setup: Setup) -> Any:
    """The section as one rank sees it: its part of the batch, and of the K instances a model is given."""
    counts = {name: getattr(section, name, 0) // setup.world for name in ("batch_size", "top_k")}
    return section.model_copy(update={name: count for name, count in counts.items() if count})
