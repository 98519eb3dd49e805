"""CNF without a router: every model takes the K instances of the pool that are hardest for it (CNF_Greedy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from cnf_cli.defences.base import BaseDefence, Clock, Metrics, Model, Reduce, draw_seeds, hardness, number
from cnf_cli.defences.pool import Pool, cost_matrix, make_pool
from cnf_cli.defences.routing import Selection, statistics
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import LossSection, TrainSection


class Params(LossSection, TrainSection):
    """The paper says "the K hardest instances" and no more; `hardness` holds the readings.

    gap      largest (R_ij - min_j R_ij) / min_j R_ij: where the model lags behind the ensemble most
    loss     largest (c / mean c) log p of the best rollout, the quantity the attack raises (Eq. 4); costs a replay
    easiest  smallest gap: the nearest thing in the published code, which is the opposite of the paper's words
    """

    defence: str = Field("cnf_greedy", description="defence plugin: `cnf list defences`")
    hardness: Literal["gap", "loss", "easiest"] = Field("gap", description="what makes an instance hard for a model")
    top_k: int = Field(0, ge=0, description="K, instances per model; 0 = batch_size")
    global_attack: bool = Field(True, description="also attack the best-performing model of each instance")
    reuse: bool = Field(
        True, description="R on clean rows and one-step global instances come from the local attacks' rollouts"
    )


class Defence(BaseDefence):
    """The pool of CNF with a rule of thumb in place of the router."""

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
        """Attack as CNF does, then train each model on its K hardest rows."""
        p = self.params
        pool = make_pool(self.attack, models, clean, rng, global_attack=p.global_attack, copy_global=p.reuse)
        before, train = draw_seeds(rng, 2, len(pool), len(models), device=clean.device)
        score = self.scores(models, pool, before)
        top = score.topk(min(p.top_k or p.batch_size, len(pool)), dim=0).indices.sort(0).values
        chosen = Selection(list(top.T))
        out = []
        for j, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            rows = chosen.trained[j]
            out.append(self.learn(model, optimizer, pool.instances[rows], train[rows, j], reduce=reduce))
        return pool.health | statistics(chosen, pool.kind) | number(out)

    def scores(self, models: Sequence[Model], pool: Pool, seeds: Int[Tensor, "N m"]) -> Float[Tensor, "N m"]:
        """How hard each row is for each model; the larger the harder."""
        p = self.params
        if p.hardness == "loss":
            columns = []
            for j, model in enumerate(models):
                rolled = self.roll(model, pool.instances, seeds[:, j])
                with torch.no_grad():
                    columns.append(hardness(rolled, self.replay(model, pool.instances, rolled)[1]))
            return torch.stack(columns, 1)
        cost, _ = cost_matrix(self, models, pool, seeds, use_known=p.reuse)
        gap = relative_gap(cost)
        return gap if p.hardness == "gap" else -gap


def relative_gap(cost: Float[Tensor, "N m"]) -> Float[Tensor, "N m"]:
    """How much worse than the row's best model each model is, as a share; 0 on maps of zero length."""
    best = cost.amin(1, keepdim=True)
    return torch.where(best > 0, (cost - best) / best.clamp_min(1e-12), torch.zeros_like(cost))
