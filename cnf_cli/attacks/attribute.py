"""Move nodes (and demands) up the gradient of (c/b) log p: the paper's attack, as released, as written, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from cnf_cli.attacks.base import Attacked, frozen, measure, named
from cnf_cli.attacks.gradient import Rolled, gradient, roll
from cnf_cli.attacks.hardness import Hardest
from cnf_cli.attacks.moves import Bounded, Free
from cnf_cli.engine.base import Engine
from cnf_cli.engine.random import seeds_from
from cnf_cli.errors import RecipeError
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.atsp import close, symmetric
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import AttackSection, BudgetSection

_GRID_BATCH = 10
"""The published test sets were attacked ten instances at a time."""


class Params(AttackSection):
    """Keys of `[attack]` for kind = "attribute"."""

    kind: str = Field("attribute", description="attack plugin: `cnf list attacks`")
    mode: Literal["released", "paper"] = Field("released", description="decides every key left at auto")
    steps: int = Field(1, ge=1, le=1000, description="T, gradient steps")
    step_low: int = Field(1, ge=0, description="smallest step size alpha")
    step_high: int = Field(100, ge=0, description="largest step size alpha")
    step_draw: Literal["batch", "instance", "grid"] = Field(
        "batch", description="one alpha per batch, one per instance, or low..high in order as for the paper's test sets"
    )
    step_scaling: Literal["auto", "batch", "instance"] = Field(
        "auto", description="batch: alpha / instances attacked together (released); instance: alpha (paper)"
    )
    scaling_batch: int = Field(0, ge=0, description="the divisor of batch scaling; 0 = the batch itself, 10 with grid")
    projection: Literal["auto", "always", "if_needed", "clip", "none"] = Field(
        "auto", description="per-axis min-max always (released), only outside the map (paper), clipping, or nothing"
    )
    objective: Literal["auto", "hac", "detached", "advantage", "greedy"] = Field(
        "auto", description="what is ascended; auto: hac, and advantage with a budget"
    )
    attributes: tuple[Literal["xy", "customers", "depot", "demand", "matrix"], ...] = Field(
        (), description="what may change; empty: coordinates, and demands in paper mode or with a demand budget; costs"
    )
    repair: tuple[Literal["symmetric", "triangle"], ...] = Field(
        (), description="cost matrices: afterwards both directions cost the same; detours never pay (released: neither)"
    )
    budget: BudgetSection = Field(BudgetSection(), description="how far the attack may go")
    keep_best: bool | Literal["auto"] = Field(
        "auto", description="keep the hardest instance of all steps; auto: only with a budget"
    )
    fresh_rollouts: bool = Field(
        False, description="global attack: sample again after choosing the model, as the published code does"
    )

    @property
    def bounded(self) -> bool:
        """True when there is a budget."""
        return self.budget.given

    @model_validator(mode="after")
    def _agree(self) -> Params:
        if self.step_low > self.step_high:
            raise ValueError(f"step_low {self.step_low} is larger than step_high {self.step_high}")
        if self.bounded and (self.projection != "auto" or self.step_scaling != "auto" or self.scaling_batch):
            raise ValueError("a budget decides projection, step_scaling and scaling_batch: leave them out")
        return self


class Attack:
    """The attribute attack on any problem with coordinates, or with a matrix of costs."""

    def __init__(self, params: Params, problem: Any, engine: Engine) -> None:
        self.params, self.problem, self.engine = params, problem, engine
        released, bounded = params.mode == "released", params.bounded
        self.names = _names(params, problem)
        self.objective = _or(params.objective, "advantage" if bounded else "hac")
        self.scaling = _or(params.step_scaling, "batch" if released else "instance")
        how = _or(params.projection, "always" if released else "if_needed")
        repair = self._repair if params.repair else None
        self.free = Free(problem, self.names, "minmax" if how == "always" else how, params.mode, repair)  # type: ignore[arg-type]
        self.keep = bounded if params.keep_best == "auto" else params.keep_best

    def draw(self, count: int, rng: torch.Generator) -> Float[Tensor, " b"]:
        """Whole step sizes for `count` instances; a grid spreads low..high evenly over them, in order."""
        low, levels = self.params.step_low, self.params.step_high - self.params.step_low + 1
        if self.params.step_draw == "grid":
            return low + (torch.arange(count) * levels // max(count, 1)).float()
        wide = count if self.params.step_draw == "instance" else 1
        drawn = torch.randint(low, low + levels, (wide,), generator=rng, device=rng.device).cpu()
        return drawn.float().expand(count).clone()

    def __call__(
        self,
        policies: Sequence[Encoder],
        clean: Instances,
        *,
        rng: torch.Generator,
        step: Float[Tensor, " b"] | None = None,
    ) -> Attacked:
        """Each step attacks an instance's currently best policy; order and count stay.

        `step` gives the alphas instead of drawing them: one draw shared by several attacks, or slices of a grid.
        """
        clean = clean.detach()
        alpha = (self.draw(len(clean), rng) if step is None else step).to(clean.device).float()
        with frozen(policies):
            return self._run(policies, clean, rng, alpha) if len(clean) else Attacked(clean, {"alpha": alpha})

    def _run(self, policies: Sequence[Encoder], clean: Instances, rng: torch.Generator, alpha: Tensor) -> Attacked:
        bounded = Bounded(self.problem, clean, self.names, self.params.budget, self.params.steps)
        hardest = Hardest(policies, self.problem, self.engine) if self.keep else None
        before = hardest.offer(clean) if hardest else None
        flags = {name: torch.zeros_like(alpha) for name in ("zero_gradient", "nonfinite_gradient", "projected")}
        now, clean_cost, best = clean, None, None
        # One policy is rolled out and differentiated on the same instances: encode them once.
        fields = tuple(self.problem.masks(clean, self.names))
        once = fields if len(policies) == 1 and "demand" not in fields else ()
        for _ in range(self.params.steps):
            rolls = [self._roll(policy, now, seeds, once) for policy, seeds in self._seeded(policies, now, rng)]
            costs = torch.stack([r.best for r in rolls], -1)
            best = costs.argmin(-1)
            clean_cost = costs if clean_cost is None else clean_cost
            grads = self._ascend(policies, now, rolls, best, rng)
            self._guard(now, grads, flags)
            if self.params.bounded:
                now, held = bounded(now, grads)
            else:
                now, held = self.free(now, grads, self._scaled(alpha, best))
            flags["projected"] = torch.maximum(flags["projected"], held.float())
            if hardest:
                hardest.learn(rolls)
                hardest.offer(now)
        assert clean_cost is not None
        stats = {"alpha": torch.full_like(alpha, bounded.share * bounded.radius) if self.params.bounded else alpha}
        stats |= flags | {"cost_before": clean_cost.amin(-1) if before is None else before}
        if hardest:
            now, stats["cost_after"], stats["hardness"] = hardest.pick()
        return Attacked(now, stats | measure(clean, now), best, clean_cost)

    def _seeded(
        self, policies: Sequence[Encoder], inst: Instances, rng: torch.Generator
    ) -> list[tuple[Encoder, Tensor | None]]:
        """Every policy with the same seeds: what differs between them is then the policy, not the luck of the draw."""
        seeds = None if self.objective == "greedy" else seeds_from(rng, len(inst)).to(inst.device)
        return [(policy, seeds) for policy in policies]

    def _roll(self, policy: Encoder, inst: Instances, seeds: Tensor | None, wanted: Sequence[str] = ()) -> Rolled:
        return roll(policy, self.problem, self.engine, inst, seeds, wanted)

    def _ascend(
        self,
        policies: Sequence[Encoder],
        now: Instances,
        rolls: Sequence[Rolled],
        best: Int[Tensor, " b"],
        rng: torch.Generator,
    ) -> dict[str, Tensor]:
        """Every instance's gradient through its own best policy."""
        fields = tuple(self.problem.masks(now, self.names))
        out = {name: torch.zeros_like(getattr(now, name)) for name in fields}
        fresh = self.params.fresh_rollouts and len(policies) > 1
        for j, (policy, seeds) in enumerate(
            self._seeded(policies, now, rng) if fresh else [(p, None) for p in policies]
        ):
            rows = (best == j).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            part = now[rows]
            rolled = rolls[j] if len(policies) == 1 else rolls[j].rows(rows)
            if fresh:
                rolled = self._roll(policy, part, None if seeds is None else seeds[rows])
            found = gradient(policy, self.problem, self.engine, part, rolled, self.objective, fields)
            for name in fields:
                out[name][rows] = found[name]
        return out

    def _guard(self, now: Instances, grads: dict[str, Tensor], flags: dict[str, Tensor]) -> None:
        """Non-finite entries become 0; instances that had any, and those left without a gradient, are flagged."""
        broken = torch.zeros(len(now), dtype=torch.bool, device=now.device)
        some = broken.clone()
        for name, mask in self.problem.masks(now, self.names).items():
            broken |= ~grads[name].flatten(1).isfinite().all(-1)
            grads[name] = grads[name].nan_to_num(0.0, 0.0, 0.0)
            size = grads[name].abs().sum(-1) if grads[name].ndim > mask.ndim else grads[name].abs()
            some |= ((size > 0) & mask).flatten(1).any(-1)
        flags["nonfinite_gradient"] = torch.maximum(flags["nonfinite_gradient"], broken.float())
        flags["zero_gradient"] = torch.maximum(flags["zero_gradient"], (~some).float())

    def _repair(self, inst: Instances) -> Instances:
        """Cost matrices that are symmetric, or closed under the triangle inequality, as the recipe asks."""
        assert inst.matrix is not None
        matrix = symmetric(inst.matrix) if "symmetric" in self.params.repair else inst.matrix
        return inst.with_(matrix=close(matrix) if "triangle" in self.params.repair else matrix)

    def _scaled(self, alpha: Float[Tensor, " b"], best: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """alpha over the number of instances whose mean was differentiated: those with the same best policy."""
        if self.scaling == "instance":
            return alpha
        given = self.params.scaling_batch or (_GRID_BATCH if self.params.step_draw == "grid" else 0)
        return alpha / given if given else alpha / best.bincount()[best]


def _or(given: str, otherwise: str) -> str:
    return otherwise if given == "auto" else given


def _names(params: Params, problem: Any) -> tuple[str, ...]:
    """The problem's own names of the attributes to attack."""
    budget = params.budget
    if "matrix" in problem.movable and set(params.attributes) <= {"matrix"}:
        if params.bounded:
            raise RecipeError(
                f"attack.budget bounds places and demands, and {problem.kind} has neither", hint="`cnf list attacks`"
            )
        return ("matrix",)
    if params.repair:
        raise RecipeError(f"attack.repair is for cost matrices, and {problem.kind} has none", hint="leave it out")
    if params.attributes:
        return named(params.attributes, problem)
    if params.bounded:
        places = ("xy",) if budget.radius or not budget.demand else ()
        return named((*places, "demand") if budget.demand else places, problem)
    return named(("xy", "demand") if params.mode == "paper" and "demand" in problem.movable else ("xy",), problem)
