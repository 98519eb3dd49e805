"""Diversity training: models whose losses point in different directions of the input space (POMO_DivTrain)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from cnf_cli.defences.base import Clock, Metrics, Model, Reduce, attack_health
from cnf_cli.defences.inputs import InputGradientDefence, cosines
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import Count, TrainSection


class Params(TrainSection):
    """The paper gives lambda = 0.5 and no code."""

    defence: str = Field("divtrain", description="defence plugin: `cnf list defences`")
    strength: float = Field(0.5, ge=0, description="lambda, weight of log sum over pairs of exp cos(input gradients)")
    chunk: Count = Field(16, description="instances whose second-order graph is held at once; memory only")


class Defence(InputGradientDefence):
    """One shared adversarial batch for all models: a cosine means something only on the same inputs."""

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
        """The models take turns, step by step, to attack the batch that all of them train on."""
        attacker = models[clock.step % len(models)]
        attacked = self.attack([attacker], clean, rng=rng)
        hard = attacked.instances.detach()
        out = self.penalise(models, optimizers, hard, self.penalty, rng, self.params.chunk, reduce)
        return attack_health([attacked]) | out

    def penalty(self, grads: Sequence[Float[Tensor, "k g"]]) -> Float[Tensor, " k"]:
        """lambda log sum_{a<b} exp cos(g_a, g_b), per instance."""
        pairs = cosines(grads)
        return self.params.strength * pairs.logsumexp(0) if len(pairs) else grads[0].new_zeros(len(grads[0]))
