"""CNF: attack together, then let a router hand every model the instances it should train on (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from cnf_cli.attacks.base import Attack
from cnf_cli.attacks.gradient import Rolled
from cnf_cli.defences.base import BaseDefence, Clock, Metrics, Model, Reduce, apply, draw_seeds, number, part_of
from cnf_cli.defences.pool import Pool, cost_matrix, make_pool, rolled_rows
from cnf_cli.defences.router import Router, make_router
from cnf_cli.defences.routing import NEEDS_COST, NEEDS_ROUTER, STRATEGIES, Question, Selection, distinct, statistics
from cnf_cli.engine.base import Engine
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import LossSection, Positive, TrainSection


class Params(LossSection, TrainSection):
    """`mode` says whose algorithm runs; every other key changes one thing in it.

    released   what the published code does: routing `topk-with-best`, every rollout done anew (those of the global
               attack as well, `attack.fresh_rollouts` or not), R and R' on all rows;
               without the router, the overlapping random slices (N, N - N//3, N - 2 (N//3))
    paper      what Algorithm 1 says: routing `m-topk`, every rollout done anew, R and R' on all rows; without the
               router, equal random shares
    efficient  the released algorithm without work whose result is already known (see `reuse`)
    """

    defence: str = Field("cnf", description="defence plugin: `cnf list defences`")
    mode: Literal["released", "paper", "efficient"] = Field("efficient", description="whose algorithm runs")
    routing: Literal[
        "auto",
        "m-topk",
        "m-sample",
        "i-topk",
        "i-sample",
        "random",
        "self-training",
        "topk-with-best",
        "best",
        "balanced",
    ] = Field("auto", description="how instances reach models; auto = m-topk in mode paper, else topk-with-best")
    ties: Literal["auto", "draw", "least-loaded", "first"] = Field(
        "auto",
        description="who gets a row that several models are best at; auto = draw in best, else first as published",
    )
    top_k: int = Field(0, ge=0, description="K, instances per model in m-* routing; 0 = batch_size")
    instance_top_k: int = Field(1, ge=1, description="models per instance in i-* routing")
    global_attack: bool = Field(True, description="also attack the best-performing model of each instance")
    router: bool = Field(True, description="false: random routing in place of routing that needs the router")
    router_features: Literal["paper", "separate", "nonlinear"] = Field(
        "paper", description="what the router sees of an instance: its centroid; depot and demands apart; its shape"
    )
    router_width: int = Field(128, ge=1, le=4096, description="h, width of the router")
    router_lr: Positive = Field(1e-4, description="learning rate of the router; never decayed")
    router_temperature: Positive = Field(1.0, description="logits are divided by it before the softmax")
    router_loss_on: Literal["routed", "trained"] = Field(
        "routed", description="entries that are reinforced: the router's choices, or all a model trained on"
    )
    reward: Literal["raw", "relative", "standard"] = Field(
        "raw", description="min R - min R': in cost units, as a share of min R, or divided by its deviation"
    )
    reward_baseline: Literal["none", "mean"] = Field("none", description="subtracted from the router's reward")
    common_random_numbers: bool = Field(False, description="R' samples with the seeds of R: less noise in the reward")
    reuse: bool = Field(
        True,
        description="mode efficient: R on clean rows is what the local attacks' rollouts cost there, and R' is"
        " sampled on routed rows only",
    )
    copy_global: bool = Field(
        True,
        description="mode efficient, one-step attacks: the global instance is the best model's local one; same up to"
        " sampling with per-instance step scaling, a step of alpha/B instead of about alpha M/B with batch scaling",
    )
    reuse_tours: bool = Field(
        False, description="mode efficient: train on the tours sampled for R; slightly biased where R chose the rows"
    )

    @property
    def strategy(self) -> str:
        """The routing in use: what `auto` and the missing router come to."""
        name = self.routing if self.routing != "auto" else "m-topk" if self.mode == "paper" else "topk-with-best"
        asks = name in ("m-topk", "m-sample", "i-topk", "i-sample", "topk-with-best")
        return "random" if asks and not self.router else name

    @property
    def tie_rule(self) -> str:
        """What `ties` amounts to."""
        if self.ties != "auto":
            return self.ties
        return "draw" if self.routing == "best" else "first"

    def identity(self) -> dict[str, Any]:
        """As of any table; results from before there was a choice gave ties to the first model, which goes unsaid.

        Results of the modes that do every rollout anew are others since that includes the global attack's.
        """
        kept = {key: value for key, value in super().identity().items() if key != "ties"}
        kept |= {} if self.tie_rule == "first" else {"ties": self.tie_rule}
        return kept if self.mode == "efficient" else {**kept, "every_rollout": "anew"}


class Defence(BaseDefence):
    """M models, one router and the pool between them."""

    params: Params
    router: Router | None = None

    def __init__(self, params: TrainSection, *, problem: BaseProblem, engine: Engine, attack: Attack) -> None:
        super().__init__(params, problem=problem, engine=engine, attack=attack)
        own: Any = getattr(attack, "params", None)
        if self.params.mode != "efficient" and getattr(own, "fresh_rollouts", None) is False:
            anew: Any = type(attack)
            self.attack = anew(own.model_copy(update={"fresh_rollouts": True}), problem, engine)

    @property
    def routing(self) -> str:
        """The strategy in use."""
        return self.params.strategy

    @property
    def reuse(self) -> bool:
        return self.params.mode == "efficient" and self.params.reuse

    @property
    def reuse_tours(self) -> bool:
        return self.params.mode == "efficient" and self.params.reuse_tours

    @property
    def _copy(self) -> bool:
        return self.params.mode == "efficient" and self.params.copy_global

    @property
    def _global(self) -> bool:
        return self.params.global_attack and self.routing != "self-training"  # which would never look at the rows

    def setup(self, models: Sequence[Model], device: torch.device | str, rng: torch.Generator) -> None:
        """The router and its optimizer exist where the routing asks for one."""
        seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
        if self.routing not in NEEDS_ROUTER:
            return
        p = self.params
        example = self.problem.sample(1, rng=torch.Generator().manual_seed(0))
        self.router = make_router(example, len(models), seed=seed, width=p.router_width, features=p.router_features)
        self.router.to(device)
        self.router_optimizer = Adam(self.router.parameters(), lr=p.router_lr, weight_decay=p.weight_decay)

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.router is None else {"router": self.router}

    def optimizers(self) -> dict[str, Optimizer]:
        return {} if self.router is None else {"router": self.router_optimizer}

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
        """Lines 3 to 15 of Algorithm 1: attack, evaluate, route, train every model, then the router."""
        p = self.params
        pool = make_pool(self.attack, models, clean, rng, global_attack=self._global, copy_global=self._copy)
        # One seed per row, model and purpose, drawn whether used or not: leaving work out changes no other draw.
        before, train, after = draw_seeds(rng, 3, len(pool), len(models), device=clean.device)
        cost, rolled = self.evaluate(models, pool, before)
        chosen = self.route(pool, cost, rng)
        metrics = pool.health | statistics(chosen, pool.kind) | _pool_costs(pool, cost)
        trained = []
        for j, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            rows = chosen.trained[j]
            known = self._tours(pool, rolled, j, rows)
            part = pool.instances[rows]
            trained.append(self.learn(model, optimizer, part, train[rows, j], reduce=reduce, rolled=known))
        metrics |= number(trained)
        if chosen.log_prob is not None:
            seeds = before if p.common_random_numbers else after
            metrics |= self._train_router(models, pool, cost, chosen, seeds, reduce)
        return metrics

    def evaluate(
        self, models: Sequence[Model], pool: Pool, seeds: Int[Tensor, "N m"]
    ) -> tuple[Float[Tensor, "N m"], list[Rolled]]:
        """R (line 11), with the tours behind it; NaN throughout where no strategy looks at it."""
        if self.routing in NEEDS_COST:
            return cost_matrix(self, models, pool, seeds, use_known=self._use_known)
        return torch.full((len(pool), len(models)), torch.nan, device=pool.kind.device), []

    @property
    def _use_known(self) -> bool:
        # The attack's tours are not kept, so training on known tours needs its own ones for clean rows.
        # Seeds shared by R and R' need R to have been sampled with them.
        return self.reuse and not self.reuse_tours and not self.params.common_random_numbers

    def route(self, pool: Pool, cost: Float[Tensor, "N m"], rng: torch.Generator) -> Selection:
        """Who trains on what (line 12)."""
        p = self.params
        question = Question(
            cost=cost,
            kind=pool.kind,
            maker=pool.maker,
            top_k=p.top_k or p.batch_size,
            rng=rng,
            logits=None if self.router is None else self.router(pool.instances, cost),
            instance_top_k=p.instance_top_k,
            temperature=p.router_temperature,
            overlapping_slices=p.mode == "released",
            ties=p.tie_rule,
        )
        return STRATEGIES[self.routing](question)

    def _tours(self, pool: Pool, rolled: list[Rolled], j: int, rows: Int[Tensor, " k"]) -> Rolled | None:
        if not (self.reuse_tours and rolled and len(rows)):
            return None
        everything = torch.arange(len(pool), device=rows.device)
        own = rolled_rows(pool, everything, self._use_known)
        return part_of(rolled[j], torch.searchsorted(own, pool.source[rows]))

    def _train_router(
        self,
        models: Sequence[Model],
        pool: Pool,
        cost: Float[Tensor, "N m"],
        chosen: Selection,
        seeds: Int[Tensor, "N m"],
        reduce: Reduce | None,
    ) -> Metrics:
        """The router took one step on Eq. 6: reinforce entries whose row the ensemble solves better than before."""
        assert self.router is not None
        assert chosen.log_prob is not None
        entries = chosen.routed if self.params.router_loss_on == "routed" else chosen.trained
        rows = distinct(torch.cat(entries)) if self.reuse else None
        new, _ = cost_matrix(self, models, pool, seeds, rows)
        old, gain = cost.amin(1), cost.amin(1) - new.amin(1)
        row = torch.cat(entries)
        model = torch.cat([torch.full_like(r, j) for j, r in enumerate(entries)])
        reward = shape_reward(gain[row], old[row], self.params.reward, self.params.reward_baseline)
        loss = -(reward * chosen.log_prob[row, model]).mean()
        self.router_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        apply(self.router, self.router_optimizer, reduce)
        spread = float(gain[row].std()) if len(row) > 1 else 0.0
        return {
            "router_loss": float(loss.detach()),
            "router_reward": float(gain[row].mean()),
            "router_reward_std": spread,
        }


def shape_reward(gain: Float[Tensor, " k"], old: Float[Tensor, " k"], scale: str, baseline: str) -> Float[Tensor, " k"]:
    """The router's reward from the drop of the ensemble's cost on each entry's row."""
    reward = gain
    if scale == "relative":
        reward = torch.where(old > 0, gain / old.clamp_min(1e-12), torch.zeros_like(gain))
    elif scale == "standard" and len(gain) > 1:
        reward = gain / gain.std().clamp_min(1e-8)
    return reward - reward.mean() if baseline == "mean" else reward


def _pool_costs(pool: Pool, cost: Float[Tensor, "N m"]) -> Metrics:
    """The ensemble's mean cost on each kind of row."""
    if bool(cost.isnan().any()):
        return {}
    names = ("clean", "local", "global")
    best = cost.amin(1)
    return {
        f"pool_{name}": float(best[pool.kind == k].mean()) for k, name in enumerate(names) if (pool.kind == k).any()
    }
