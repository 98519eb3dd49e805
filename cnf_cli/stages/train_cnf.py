"""Harden an ensemble: copies of a pretrained policy trained together by the recipe's defence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import RecipeError
from cnf_cli.pipeline.job import Job, Result, derived_seed
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe import Recipe
from cnf_cli.stages import pretrain

if TYPE_CHECKING:
    import torch

    from cnf_cli.store import Manifest
    from cnf_cli.training.machine import Setup
    from cnf_cli.training.resume_state import Progress

VERSION = 1


def task(recipe: Recipe, init: Task | Manifest | None = None) -> Task:
    """The recipe's hardened ensemble, from its pretrained policy or from another artifact's weights."""
    policy = init if init is not None else pretrain.task(recipe)
    sections = recipe.sections("problem", "attack", "train")
    # Models in training are attacked as they are, so how they may be decoded later is no part of this.
    sections["attack"] = recipe.attack.model_copy(update={"distance_bias": ()})
    command = f"cnf train-cnf {recipe.source}"
    return Task(STAGE, sections, {"policy": policy}, alias=f"{recipe.name}/train-cnf", command=command)


def run(job: Job) -> Result:
    """Writes model-0.safetensors ... , router.safetensors where there is one, and metrics.jsonl."""
    from cnf_cli.training.machine import set_up

    section = job.section("train")
    if section.keep == "best" and not section.validation_count:
        raise RecipeError('train.keep = "best" needs train.validation_count', hint="give some, or keep the last models")
    with set_up(job.runtime) as setup:
        return _train(job, setup)


def _train(job: Job, setup: Setup) -> Result:
    from cnf_cli.training.best_models import Best
    from cnf_cli.training.loop import Loop
    from cnf_cli.training.stored_policies import load_models, save_models
    from cnf_cli.training.validation import adversarial_set, validation_set

    start = load_models(job.inputs["policy"], setup.device)
    job.provenance["bytes_depend_on"] = setup.steady(start.policies[0])
    step = Step(job, setup)
    section, models, problem = step.section, step.models, step.problem
    clean_set = validation_set(job, problem, section)
    hard_set = adversarial_set(job, problem, start.policies[:1], setup, clean_set)
    job.provenance["engine"] = setup.engine.name
    best = Best(job.work / "best.safetensors", models, job.bars.say) if section.keep == "best" else None

    def validate(at: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
        measured = {
            name: instances.measure(models, problem, setup.engine, setup.device)
            for name, instances in (("clean", clean_set), ("adversarial", hard_set))
            if instances
        }
        if best:
            best.offer(sum(found["cost"] for found in measured.values()), at.instances)
        return _told(measured)

    problem_section = job.section("problem")
    loop = Loop(job, setup, section, step.modules(), step.named_optimizers(), ("pool_clean", "pool_local", "lr"))
    at = loop.run(f"{section.defence}({len(models)}) on {problem_section.kind}{problem_section.n}", step, validate)
    kept_at = best.restore() if best else None

    files = save_models(job.work, models, problem_section, start.policy_section)
    files |= _save_beside(job, step.defence.modules())
    checks = {
        "problem": problem_section.kind,
        "models": len(models),
        "instances": at.instances,
        "defence": section.defence,
        **({"kept_at": kept_at} if kept_at else {}),
    }
    return Result({**files, "metrics.jsonl": job.work / "metrics.jsonl"}, checks)


class Step:
    """One step of the training: fresh clean instances, and what the defence makes of them."""

    def __init__(self, job: Job, setup: Setup) -> None:
        import torch

        from cnf_cli import plugins
        from cnf_cli.training.loop import make_optimizer
        from cnf_cli.training.stored_policies import make_problem

        self.setup, self.section, self.attack_section = setup, job.section("train"), job.section("attack")
        self.problem = make_problem(job.section("problem"))
        self.models = _copies(job, setup, self.section.models)
        self.attack = plugins.create("attacks", self.attack_section, self.problem, setup.engine)
        self.defence = plugins.create(
            "defences", _share(self.section, setup), problem=self.problem, engine=setup.engine, attack=self.attack
        )
        rng = torch.Generator().manual_seed(derived_seed(self.section.seed, "defence"))
        self.defence.setup(self.models, setup.device, rng)
        self.optimizers = [make_optimizer(self.section, model) for model in self.models]
        self.learns = hasattr(self.attack, "fit")  # an attack that is trained itself
        if self.learns:
            self.attack.bind(self.models)

    def modules(self) -> dict[str, Any]:
        """Everything that learns, by name."""
        models = {f"model-{j}": model for j, model in enumerate(self.models)}
        return {**models, **self.defence.modules(), **(self.attack.modules() if self.learns else {})}

    def named_optimizers(self) -> dict[str, Any]:
        """The optimizers, by the names of what they move."""
        return {**{f"model-{j}": one for j, one in enumerate(self.optimizers)}, **self.defence.optimizers()}

    def __call__(self, at: Progress, size: int) -> dict[str, float]:
        """The ensemble learned from `size` more clean instances."""
        from cnf_cli.defences.base import Clock
        from cnf_cli.training.loop import fresh, learning_rate, set_rate

        section, setup = self.section, self.setup
        rate = learning_rate(section.lr, section.decay_last, section.decay_factor, at.instances, section.instances)
        for optimizer in self.optimizers:
            set_rate(optimizer, rate)
        clean = fresh(self.problem, section, size, rng=self._rng("train", at.step))[setup.mine(size)].to(setup.device)
        if self.learns and refit_due(section, at, self.attack_section.refit_epochs):
            rng = self._rng("fit attack", at.step)
            training = self.problem.sample(self.attack_section.fit_instances, rng=rng).to(setup.device)
            self.attack.fit(self.models, training, rng=rng)
        clock = Clock(at.step, at.instances // section.epoch_instances, at.instances / section.instances)
        own = self._rng("step", at.step, setup.rank)
        reduce = setup.average if setup.world > 1 else None
        numbers = self.defence.step(self.models, self.optimizers, clean, clock=clock, rng=own, reduce=reduce)
        return {**numbers, "lr": rate}

    def _rng(self, *what: str | int) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(derived_seed(self.section.seed, *what))


def _copies(job: Job, setup: Setup, count: int) -> list[Any]:
    """So many models with the start's weights; an ensemble's models are taken in turn."""
    from cnf_cli.training.stored_policies import load_models

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


def _title(task: Task) -> str:
    train = task.dumped()["train"]
    return f"harden it: {train['defence']}, {train['models']} models"


STAGE = Stage(
    "train_cnf",
    VERSION,
    run,
    _title,
    command=lambda _, recipe: f"cnf train-cnf {recipe}" if recipe else "",
    distributed=True,
)
