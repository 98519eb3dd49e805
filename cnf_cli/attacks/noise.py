"""Move nodes (and demands) at random within a budget: the floor every gradient attack has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from cnf_cli.attacks.base import Attacked, frozen, measure, named
from cnf_cli.attacks.hardness import Hardest
from cnf_cli.attacks.moves import load, place, strongest, units_of
from cnf_cli.engine.base import Engine
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import AttackSection, BudgetSection


class Params(AttackSection):
    """Keys of `[attack]` for kind = "noise"."""

    kind: str = Field("noise", description="attack plugin: `cnf list attacks`")
    budget: BudgetSection = Field(default=BudgetSection(radius=0.05), description="how far the moves go")
    depot: bool = Field(default=False, description="the depot moves too")
    tries: int = Field(default=1, ge=1, le=1000, description="draws per instance; the hardest for the policies is kept")

    @model_validator(mode="after")
    def _agree(self) -> Params:
        if not (self.budget.radius or self.budget.demand):
            raise ValueError("budget.radius or budget.demand must be above 0, or nothing moves")
        return self


class Attack:
    """Random moves on any problem with coordinates."""

    def __init__(self, params: Params, problem: Any, engine: Engine) -> None:
        self.params, self.problem, self.engine = params, problem, engine
        wanted = (("xy",) if params.budget.radius else ()) + (("depot",) if params.depot else ())
        self.names = named((*wanted, "demand") if params.budget.demand else wanted, problem)

    def draw(self, count: int, rng: torch.Generator) -> Float[Tensor, " b"]:
        """The radius: this attack has no other step size."""
        return torch.full((count,), self.params.budget.radius)

    def __call__(
        self,
        policies: Sequence[Encoder],
        clean: Instances,
        *,
        rng: torch.Generator,
        step: Float[Tensor, " b"] | None = None,
    ) -> Attacked:
        """Every node moves by the radius in a random direction, unless the map's edge stops it; `step` is ignored."""
        clean = clean.detach()
        stats = {name: torch.zeros(len(clean), device=clean.device) for name in ("zero_gradient", "nonfinite_gradient")}
        stats["alpha"] = self.draw(len(clean), rng).to(clean.device)
        if len(clean) == 0:
            return Attacked(clean, stats)
        now = self._move(clean, rng)
        if self.params.tries > 1:
            with frozen(policies):
                hardest = Hardest(policies, self.problem, self.engine)
                stats["cost_before"] = hardest.offer(clean)
                hardest.offer(now)
                for _ in range(self.params.tries - 1):
                    hardest.offer(self._move(clean, rng))
                now, stats["cost_after"], stats["hardness"] = hardest.pick()
        return Attacked(now, stats | measure(clean, now))

    def _move(self, clean: Instances, rng: torch.Generator) -> Instances:
        def rand(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=rng, device=rng.device).to(clean.device)

        shape, budget, masks = (len(clean), clean.nodes), self.params.budget, self.problem.masks(clean, self.names)
        angle, rank, amount = 2 * torch.pi * rand(*shape), rand(*shape), rand(*shape)
        rank = rank * torch.stack(list(masks.values())).any(0)
        chosen, out = strongest(rank, budget.nodes), clean
        if "xy" in masks and clean.xy is not None:
            moved = clean.xy + budget.radius * torch.stack([angle.cos(), angle.sin()], -1)
            out = out.with_(xy=place(clean, moved, masks["xy"] & chosen, budget.radius))
        if "demand" in masks:
            change = (amount * (2 * budget.demand + 1)).floor() - budget.demand
            out = out.with_(demand=load(clean, units_of(clean) + change, masks["demand"] & chosen, budget.demand))
        return out
