"""What every defence shares: the clock, seeds, costs of a model on instances, and one update from rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import Optimizer

from cnf_cli.attacks.base import Attack, Attacked, frozen
from cnf_cli.attacks.gradient import Rolled, roll
from cnf_cli.engine.base import Engine
from cnf_cli.engine.random import seeds_from
from cnf_cli.policies.losses import rollout_losses, tour_losses
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import TrainSection

ROOM = {"cpu": 1 << 11, "other": 1 << 15}
"""Instances times nodes that pass through the encoder at once: on a CPU few enough to stay in its caches (a fifth
faster), anywhere few enough to bound memory when a model is given the whole pool."""
Reduce = Callable[[nn.Module], None]
"""Averages a module's gradients over the ranks of a distributed run."""
Metrics = dict[str, float]
Model = Any
"""An `nn.Module` that is also a `policies.run.Encoder`."""
Weigh = Callable[[Rolled, Float[Tensor, "b p"]], Float[Tensor, " b"]]
"""From what was rolled out, and its log-probabilities, to the weight of each instance's loss."""


@dataclass(frozen=True)
class Clock:
    """Where the run stands."""

    step: int
    epoch: int
    """0 in the first epoch."""
    progress: float
    """Share of the run's instances seen before this step, in [0, 1]."""


class BaseDefence:
    """A defence without modules of its own; subclasses write `step`."""

    def __init__(self, params: TrainSection, *, problem: BaseProblem, engine: Engine, attack: Attack) -> None:
        self.params: Any = params
        self.problem, self.engine, self.attack = problem, engine, attack

    def setup(self, models: Sequence[Model], device: torch.device | str, rng: torch.Generator) -> None:
        """Everything the defence owns exists, on `device`."""

    def modules(self) -> dict[str, nn.Module]:
        """What is saved beside the models."""
        return {}

    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers of `modules`."""
        return {}

    def step(
        self,
        models: Sequence[Model],
        optimizers: Sequence[Optimizer],
        clean: Instances,
        *,
        clock: Clock,
        rng: torch.Generator,
        reduce: Reduce | None = None,
    ) -> Metrics:
        """One update of the ensemble from one clean batch."""
        raise NotImplementedError

    def roll(self, model: Model, inst: Instances, seeds: Int[Tensor, " b"]) -> Rolled:
        """Sampled tours of `model` in evaluation mode, without gradients."""
        with frozen([model]):
            parts = [roll(model, self.problem, self.engine, inst[rows], seeds[rows]) for rows in cuts(inst)]
        # Tours that end at the depot, node 0, differ in length from part to part.
        longest = max(part.tours.shape[-1] for part in parts)
        tours = [pad(part.tours, (0, longest - part.tours.shape[-1])) for part in parts]
        return Rolled(torch.cat(tours), torch.cat([part.cost for part in parts]))

    def replay(self, model: Model, inst: Instances, rolled: Rolled) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """(the loss of each instance on tours sampled before, their log-probabilities now)."""
        world = self.problem.world(inst)
        tables = model.encode(inst, engine=self.engine)
        return tour_losses(self.params, self.engine, tables, world, rolled.tours, rolled.cost)

    def learn(
        self,
        model: Model,
        optimizer: Optimizer,
        inst: Instances,
        seeds: Int[Tensor, " b"],
        *,
        reduce: Reduce | None = None,
        rolled: Rolled | None = None,
        weigh: Weigh | None = None,
    ) -> Metrics:
        """The model took one optimizer step on the loss over `inst`, the plain mean unless `weigh` gives weights.

        `rolled` are on-policy tours sampled earlier under the same weights; without it, new ones are sampled.
        No instances means no step, unless other ranks may have some.
        """
        optimizer.zero_grad(set_to_none=True)
        if len(inst) == 0:
            return self._nothing(model, optimizer, reduce)
        model.train()
        total, best = 0.0, 0.0
        # In one piece where instances depend on each other: weights over the whole batch, or a norm with statistics.
        whole = weigh is not None or any(True for _ in model.buffers())
        for rows in [slice(None)] if whole else cuts(inst):
            part = inst[rows]
            own = None if rolled is None else part_of(rolled, rows)
            loss, own, log_p = self._losses(model, part, seeds[rows], own)
            value = loss.sum() / len(inst) if weigh is None else (weigh(own, log_p) * loss).sum()
            torch.autograd.backward(value)
            total, best = total + float(value.detach()), best + float(own.best.sum())
        apply(model, optimizer, reduce)
        return {"loss": total, "cost": best / len(inst)}

    def _losses(
        self, model: Model, inst: Instances, seeds: Int[Tensor, " b"], rolled: Rolled | None
    ) -> tuple[Float[Tensor, " b"], Rolled, Float[Tensor, "b p"]]:
        if rolled is not None:
            loss, log_p = self.replay(model, inst, rolled)
            return loss, rolled, log_p
        loss, seen = rollout_losses(self.params, model, self.problem, inst, self.engine, seeds)
        return loss, Rolled(seen.tours, seen.cost), seen.log_prob

    def _nothing(self, model: Model, optimizer: Optimizer, reduce: Reduce | None) -> Metrics:
        if reduce is not None:  # every rank must join the average
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            apply(model, optimizer, reduce)
        return {"loss": 0.0}


def apply(module: nn.Module, optimizer: Optimizer, reduce: Reduce | None) -> None:
    """The gradients, averaged over ranks, took effect."""
    if reduce is not None:
        reduce(module)
    optimizer.step()


def cuts(inst: Instances) -> list[slice]:
    """Slices that cover the instances, each small enough for one pass through the encoder; at least one."""
    room = ROOM["cpu" if inst.device.type == "cpu" else "other"]
    size = max(1, room // inst.nodes)
    return [slice(low, low + size) for low in range(0, max(1, len(inst)), size)]


def draw_seeds(rng: torch.Generator, *shape: int, device: torch.device | str = "cpu") -> Int[Tensor, "..."]:
    """Rollout seeds of that shape."""
    count = 1
    for size in shape:
        count *= size
    return seeds_from(rng, count).view(*shape).to(device)


def number(metrics: Sequence[Metrics]) -> Metrics:
    """The models' metrics as one flat dict: `loss_0`, `loss_1`, ..."""
    return {f"{name}_{j}": value for j, own in enumerate(metrics) for name, value in own.items()}


def attack_each(attack: Attack, models: Sequence[Model], clean: Instances, rng: torch.Generator) -> list[Attacked]:
    """Each model's local attack on the same clean batch, all with the same step sizes."""
    step = attack.draw(len(clean), rng)
    return [attack([model], clean, rng=rng, step=step) for model in models]


def attack_health(attacked: Sequence[Attacked]) -> Metrics:
    """Means of what the attacks say about themselves: a batch nobody could attack should show in the metrics."""
    names = ("alpha", "moved_mean", "zero_gradient", "nonfinite_gradient")
    found = {name: [one.stats[name] for one in attacked if name in one.stats] for name in names}
    return {f"attack_{name}": float(torch.cat(values).mean()) for name, values in found.items() if values}


def hardness(rolled: Rolled, log_p: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
    """(c / mean c) log p of each instance's best rollout (Eq. 4), detached; 0 is hardest.

    The ratio of a map of zero length is 1.
    """
    best = rolled.cost.argmin(-1, keepdim=True)
    mean = rolled.cost.mean(-1)
    share = torch.where(mean > 0, rolled.cost.gather(-1, best)[:, 0] / mean.clamp_min(1e-12), torch.ones_like(mean))
    return share * log_p.detach().gather(-1, best)[:, 0]


def part_of(rolled: Rolled, rows: Int[Tensor, " k"] | slice) -> Rolled:
    """The rollouts of some instances."""
    return Rolled(rolled.tours[rows], rolled.cost[rows])
