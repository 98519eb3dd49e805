"""Adversarial training: every model alone trains on the instances its own attack made (POMO_AT)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch.optim import Optimizer

from cnf_cli.defences.base import (
    BaseDefence,
    Clock,
    Metrics,
    Model,
    Reduce,
    attack_each,
    attack_health,
    draw_seeds,
    number,
)
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import LossSection, TrainSection


class Params(LossSection, TrainSection):
    """No keys of its own."""

    defence: str = Field("at", description="defence plugin: `cnf list defences`")


class Defence(BaseDefence):
    """M independent models; only sampling sets them apart."""

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
        """Each model attacks itself on the whole clean batch, then trains on the result; no clean instances."""
        attacked = attack_each(self.attack, models, clean, rng)
        seeds = draw_seeds(rng, len(models), len(clean), device=clean.device)
        return attack_health(attacked) | number(
            [
                self.learn(model, optimizer, hard.instances.detach(), seed, reduce=reduce)
                for model, optimizer, hard, seed in zip(models, optimizers, attacked, seeds, strict=True)
            ]
        )
