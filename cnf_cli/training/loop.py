"""What training stages share: the learning rate, exact resume, validation, and what is written down on the way."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cnf_cli import interrupt
from cnf_cli.engine.base import Engine
from cnf_cli.errors import MissingDependency
from cnf_cli.pipeline import ranks
from cnf_cli.pipeline.forecast import Forecast
from cnf_cli.pipeline.job import Job
from cnf_cli.pipeline.work_files import Metrics
from cnf_cli.policies.run import answer
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances, concatenate
from cnf_cli.problems.scaled import Scaled
from cnf_cli.recipe.sections import PretrainSection, TrainSection
from cnf_cli.training.machine import Setup
from cnf_cli.training.resume_state import Progress, load_state, save_state

SAVE_EVERY_SECONDS = 60.0


def learning_rate(base: float, decay_last: float, decay_factor: float, done: int, total: int) -> float:
    """The rate for the step that begins after `done` instances: lower in the last part of the run."""
    return base * decay_factor if done >= total * (1 - decay_last) else base


def scheduled_rate(section: PretrainSection, done: int) -> float:
    """The rate for the step that begins after `done` instances, as the recipe's warm-up and schedule say."""
    if done < section.warmup:
        return section.lr * (done + 1) / (section.warmup + 1)
    if section.schedule == "last":
        return learning_rate(section.lr, section.decay_last, section.decay_factor, done, section.instances)
    way = (done - section.warmup) / max(1, section.instances - section.warmup)
    left = 1 - way if section.schedule == "linear" else (1 + math.cos(math.pi * way)) / 2
    return section.lr * (section.decay_factor + (1 - section.decay_factor) * left)


def fresh(
    problem: BaseProblem,
    section: PretrainSection | TrainSection,
    count: int,
    *,
    rng: torch.Generator,
    n: int | None = None,
) -> Instances:
    """A batch to train on, of the problem's own distribution or of those in the recipe's mix in turn."""
    mix = section.mix
    if not mix:
        return problem.sample(count, rng=rng, n=n)
    parts = [range(k, count, len(mix)) for k in range(len(mix))]
    drawn = [problem.sample(len(part), rng=rng, n=n, dist=dist) for part, dist in zip(parts, mix, strict=True) if part]
    order = torch.tensor([i for part in parts for i in part])
    return concatenate(drawn)[order.argsort()]


def make_optimizer(section: Any, model: Any) -> Optimizer:
    """A fresh optimizer for a model that lies on its device, as the recipe says."""
    from torch.optim import SGD, Adam

    kind = SGD if getattr(section, "optimizer", "adam") == "sgd" else Adam
    # One pass over memory instead of ten.
    fused = all(weight.device.type in ("cpu", "cuda") for weight in model.parameters())
    return kind(model.parameters(), lr=section.lr, weight_decay=section.weight_decay, fused=fused)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Every group of the optimizer learns at this rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@dataclass
class Validation:
    """A fixed set on which training is watched."""

    sets: Sequence[Scaled]
    """The instances, one entry per size and distance rule."""
    reference: Tensor | None = None
    """Cost of each instance by a reference solver, NaN where unknown."""
    augment: int = 1
    """Copies of each instance, the best of which counts."""

    def measure(
        self, models: Sequence[Any], problem: BaseProblem, engine: Engine, device: torch.device
    ) -> dict[str, Any]:
        """Mean greedy cost of each model and of the best of them, in the instances' own units; gaps where known."""
        was = [model.training for model in models]
        for model in models:
            model.eval()
        each = [answer(models, problem, one, engine, device, augment=self.augment) for one in self.sets]
        cost = torch.cat([found.cost for found in each], 1)
        for model, training in zip(models, was, strict=True):
            model.train(training)
        found: dict[str, Any] = {"cost": float(cost.amin(0).mean())}
        if len(models) > 1:
            found["cost_per_model"] = [float(row.mean()) for row in cost]
        if self.reference is not None and bool((self.reference > 0).any()):
            known = self.reference.isfinite() & (self.reference > 0)
            gap = 100 * (cost[:, known] / self.reference[known] - 1)
            found["gap_percent"] = float(gap.amin(0).mean())
            if len(models) > 1:
                found["gap_percent_per_model"] = [float(row.mean()) for row in gap]
        return found


class Diary:
    """What a run writes down: metrics.jsonl (the same bytes on every run), times beside it, TensorBoard on request."""

    def __init__(self, job: Job, at: Progress) -> None:
        self.job, self.writes = job, ranks.rank() == 0
        if not self.writes:
            return
        self.metrics = Metrics(job.work / "metrics.jsonl", at.instances)
        self.times = Metrics(job.work / "times.jsonl", at.instances)
        self.board = _tensorboard(job) if job.runtime.tensorboard else None

    def write(self, at: Progress, values: Mapping[str, Any], beside: Mapping[str, Any]) -> None:
        """`values` must follow from the key alone; `beside` may depend on this machine."""
        if not self.writes:
            return
        self.metrics.add({"instances": at.instances, "step": at.step, **values})
        self.times.add({"instances": at.instances, **_times(at), **beside})
        if self.board is not None:
            for name, value in {**values, **beside}.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(name, value, at.instances)
            self.board.flush()

    def close(self) -> None:
        """The times go into the manifest's provenance."""
        if not self.writes:
            return
        lines = (self.job.work / "times.jsonl").read_text().splitlines()
        self.job.provenance["curve"] = [json.loads(line) for line in lines]


def _times(at: Progress) -> dict[str, float]:
    return {"seconds": round(at.seconds, 3), "cpu_seconds": round(at.cpu_seconds, 3)}


def _clocks() -> tuple[float, float]:
    """(wall clock, CPU time of this process and of the children it has waited for)."""
    return time.monotonic(), sum(os.times()[:4])


def _tensorboard(job: Job) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependency(
            "runtime.tensorboard needs the package tensorboard", hint='pip install "cnf-cli[tensorboard]"'
        ) from None
    folder = job.work.parent.parent / "tensorboard" / job.work.name[:12]
    job.bars.say(f"TensorBoard events: tensorboard --logdir {folder}")
    return SummaryWriter(str(folder))


@dataclass
class Loop:
    """The loop of every training stage: update, now and then validate and write down, save, stop politely, resume."""

    job: Job
    setup: Setup
    section: PretrainSection | TrainSection
    modules: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    shown: tuple[str, ...] = ()
    """Which of an update's numbers stand beside the progress bar."""
    _last_save: float = 0.0

    def run(
        self,
        what: str,
        update: Callable[[Progress, int], dict[str, float]],
        validate: Callable[[Progress], tuple[dict[str, Any], dict[str, Any]]],
    ) -> Progress:
        """Calls update(progress, batch size) until all instances are seen; its numbers are averaged between two lines.

        `validate` gives what follows from the key alone, and what may depend on this machine.
        """
        total, every = self.section.instances, self.section.epoch_instances
        at = load_state(self.job.work, self.modules, self.optimizers, self.job.bars.say)
        diary = Diary(self.job, at)
        with interrupt.polite(), self.job.bars.bar(what, total, "instances", at.instances) as bar:
            began = _clocks()
            forecast = Forecast(self.job.bars.say, self._shorter())
            while at.instances < total:
                size = min(self.section.batch_size, total - at.instances)
                numbers = update(at, size)
                at.add({name: value for name, value in numbers.items() if name != "lr"})
                epoch = at.instances // every
                at.step, at.instances = at.step + 1, at.instances + size
                now = _clocks()
                at.seconds, at.cpu_seconds = at.seconds + now[0] - began[0], at.cpu_seconds + now[1] - began[1]
                began = now
                forecast.step(size, total - at.instances)
                bar.advance(size, **{name: numbers[name] for name in self.shown if name in numbers})
                if at.instances >= total or at.instances // every > epoch:
                    values, beside = validate(at)
                    diary.write(at, {**at.means(self.setup), "lr": numbers["lr"], **values}, beside)
                    bar.advance(0, **{k: v for k, v in {**values, **beside}.items() if isinstance(v, float)})
                    began = _clocks()  # validation is not training time
                self._save(at)
        diary.close()
        return at

    def _shorter(self) -> str:
        table = "pretrain" if isinstance(self.section, PretrainSection) else "train"
        return f"`--set {table}.instances=100_000` is shorter, and `cnf zoo ls` lists policies that are trained"

    def _save(self, at: Progress) -> None:
        """The state is on disk once a minute, at the end, and before a polite stop."""
        stop = self.setup.agree(self.job.stopping())
        due = time.monotonic() - self._last_save > SAVE_EVERY_SECONDS or at.instances >= self.section.instances
        if (due or stop) and self.setup.rank == 0:
            save_state(self.job.work, at, self.modules, self.optimizers)
            self._last_save = time.monotonic()
        if stop:
            self.job.pause_point()
