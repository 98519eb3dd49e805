"""Transferability-reduced smooth ensemble: diverse input gradients that are also small (POMO_TRS)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from cnf_cli.defences.base import Clock, Metrics, Model, Reduce, attack_health
from cnf_cli.defences.inputs import InputGradientDefence, cosines
from cnf_cli.problems.instances import Instances, concatenate
from cnf_cli.recipe.sections import Count, TrainSection


class Params(TrainSection):
    """scale * (similarity * mean over pairs |cos| + smoothness * mean over models 2 |g|^2), per instance.

    The paper gives no constants for routing; the method's own (for images) are 5, 2 and 2. A REINFORCE loss pulls on
    the input much harder than a cross-entropy does (|g|^2 is 20 to 90 on TSP20), and at those constants the smoothness
    term alone would pull on the weights hundreds of times as hard as the loss. With ours each term pulls about as hard
    as the loss on a policy that has just been pretrained (docs/method.md has the numbers).
    """

    defence: str = Field("trs", description="defence plugin: `cnf list defences`")
    scale: float = Field(0.25, ge=0, description="weight of the whole penalty")
    similarity: float = Field(2.0, ge=0, description="weight of the mean absolute cosine")
    smoothness: float = Field(0.01, ge=0, description="weight of the squared size of the input gradients")
    chunk: Count = Field(16, description="instances whose second-order graph is held at once; memory only")


class Defence(InputGradientDefence):
    """One shared batch for all models, half of it clean and half adversarial."""

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
        """The models take turns, step by step, to attack the second half of the batch."""
        attacker = models[clock.step % len(models)]
        attacked = self.attack([attacker], clean, rng=rng)
        hard = attacked.instances.detach()
        half = len(clean) // 2
        batch = concatenate([clean[:half], hard[half:]])
        out = self.penalise(models, optimizers, batch, self.penalty, rng, self.params.chunk, reduce)
        return attack_health([attacked]) | out

    def penalty(self, grads: Sequence[Float[Tensor, "k g"]]) -> Float[Tensor, " k"]:
        """The penalty of every instance."""
        p = self.params
        size = torch.stack([2 * g.square().sum(1) for g in grads]).mean(0)
        pairs = cosines(grads)
        alike = pairs.abs().mean(0) if len(pairs) else torch.zeros_like(size)
        return p.scale * (p.similarity * alike + p.smoothness * size)
