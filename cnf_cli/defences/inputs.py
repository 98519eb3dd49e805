"""Penalties on the gradient of the loss with respect to the input: what DivTrain and TRS share.

The penalty's own gradient is of second order: it runs through the replay of the sampled tours with the whole graph
kept, always in torch (the native engine differentiates once). Each model's graph is alive alone, and only for `chunk`
instances at a time, because d penalty / d theta_a needs the other models' input gradients as constants only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences.base import BaseDefence, Metrics, Model, Reduce, apply, draw_seeds, number, part_of
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies.run import advantage
from cnf_cli.problems.instances import Instances

Penalty = Callable[[Sequence[Float[Tensor, "k g"]]], Float[Tensor, " k"]]
"""From every model's input gradient on k instances (g numbers each) to a penalty per instance."""


class InputGradientDefence(BaseDefence):
    """All models share one batch; the loss is sum_j mean_i loss_ij + mean_i penalty_i."""

    def penalise(
        self,
        models: Sequence[Model],
        optimizers: Sequence[Optimizer],
        batch: Instances,
        penalty: Penalty,
        rng: torch.Generator,
        chunk: int,
        reduce: Reduce | None,
    ) -> Metrics:
        """Every model took one step on the whole loss; all gradients belong to the weights before the step."""
        seeds = draw_seeds(rng, len(models), len(batch), device=batch.device)
        rolled = [self.roll(model, batch, seed) for model, seed in zip(models, seeds, strict=True)]
        every = torch.arange(len(batch), device=batch.device)
        parts = [every[low : low + chunk] for low in range(0, len(batch), chunk)]
        grads = [
            torch.cat([self.input_gradient(model, batch[part], part_of(own, part), keep=False)[1] for part in parts])
            for model, own in zip(models, rolled, strict=True)
        ]
        out, total = [], 0.0
        for a, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad(set_to_none=True)
            model.train()
            loss_sum = penalty_sum = 0.0
            for part in parts:
                loss, own = self.input_gradient(model, batch[part], part_of(rolled[a], part), keep=True)
                extra = penalty([own if b == a else grad[part] for b, grad in enumerate(grads)])
                torch.autograd.backward((loss.sum() + extra.sum()) / len(batch))
                loss_sum, penalty_sum = loss_sum + float(loss.detach().sum()), penalty_sum + float(extra.detach().sum())
            apply(model, optimizer, reduce)
            total = penalty_sum / len(batch)
            size = grads[a].norm(dim=1).mean()
            cost = rolled[a].best.mean()
            out.append({"loss": loss_sum / len(batch), "cost": float(cost), "input_gradient": float(size)})
        return number(out) | {"penalty": total}

    def input_gradient(
        self, model: Model, inst: Instances, rolled: Rolled, *, keep: bool
    ) -> tuple[Float[Tensor, " k"], Float[Tensor, "k g"]]:
        """(loss per instance, its gradient with respect to the coordinates or the matrix); `keep` keeps the graph."""
        field = "xy" if inst.xy is not None else "matrix"
        x: Tensor = getattr(inst, field).detach().requires_grad_()
        moved = inst.with_(**{field: x})
        tables = model.encode(moved, second_order=keep)
        log_p = TorchEngine().log_prob(tables, self.problem.world(moved), rolled.tours)
        loss = (advantage(rolled.cost) * log_p).sum(-1)
        (grad,) = torch.autograd.grad(loss.sum(), x, create_graph=keep)
        return loss if keep else loss.detach(), grad.flatten(1)


def cosines(grads: Sequence[Float[Tensor, "k g"]]) -> Float[Tensor, "pairs k"]:
    """Cosine of every pair of models' input gradients, instance by instance; 0 where one of them vanishes."""
    unit = [g / g.norm(dim=1, keepdim=True).clamp_min(1e-12) for g in grads]
    pairs = [(unit[a] * unit[b]).sum(1) for a in range(len(unit)) for b in range(a + 1, len(unit))]
    return torch.stack(pairs) if pairs else grads[0].new_zeros(0, len(grads[0]))
