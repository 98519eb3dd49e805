"""Hardness-adaptive curriculum: every model alone, clean and adversarial mixed, weighted by hardness (POMO_HAC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences.base import (
    BaseDefence,
    Clock,
    Metrics,
    Model,
    Reduce,
    attack_each,
    attack_health,
    draw_seeds,
    hardness,
    number,
)
from cnf_cli.problems.instances import Instances, concatenate
from cnf_cli.recipe.sections import LossSection, ModeSection, Positive, TrainSection


class Params(ModeSection, LossSection, TrainSection):
    """`temperature` cyclic: as released, by epoch 19, 18, ..., 1, 20, 19, ...; linear: as the paper says."""

    added: ClassVar[tuple[str, ...]] = ("mode",)
    by_mode: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"temperature": "linear"}}
    defence: str = Field("hac", description="defence plugin: `cnf list defences`")
    mode: Literal["released", "paper"] = Field("released", description="whose temperature it is when none is given")
    temperature: Literal["cyclic", "linear"] = Field(
        "cyclic", description="how the weights' temperature falls; mode paper: linear"
    )
    temperature_start: Positive = Field(20.0, description="highest temperature, and the period of `cyclic` in epochs")
    temperature_end: Positive = Field(1.0, description="temperature at the end of the run, for `linear`")


class Defence(BaseDefence):
    """M independent models, each on a random half of its own clean and adversarial instances."""

    params: Params

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
        """Each model attacks itself, then trains on b of the 2b instances with weights that sum to one."""
        heat = temperature(self.params, clock)
        attacked = attack_each(self.attack, models, clean, rng)
        seeds = draw_seeds(rng, len(models), len(clean), device=clean.device)
        out = []
        for model, optimizer, hard, seed in zip(models, optimizers, attacked, seeds, strict=True):
            both = concatenate([clean, hard.instances.detach()])
            order = torch.randperm(len(both), generator=rng, device=rng.device).to(clean.device)
            mixed = both[order[: len(clean)]]

            def weigh(rolled: Rolled, log_p: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
                return weights(hardness(rolled, log_p), heat)

            out.append(self.learn(model, optimizer, mixed, seed, reduce=reduce, weigh=weigh))
        return attack_health(attacked) | number(out) | {"temperature": heat}


def weights(hard: Float[Tensor, " b"], heat: float) -> Float[Tensor, " b"]:
    """softmax_i( tanh(H_i) / temperature ), the published reweighting.

    H is of the size of a log-likelihood, so tanh is mostly saturated at -1 and the weights are nearly equal.
    """
    return (hard.tanh() / heat).softmax(0)


def temperature(params: Params, clock: Clock) -> float:
    """The weights' temperature now."""
    start = params.temperature_start
    if params.temperature == "cyclic":
        return start - (clock.epoch + 1) % start
    return start + (params.temperature_end - start) * min(1.0, max(0.0, clock.progress))
