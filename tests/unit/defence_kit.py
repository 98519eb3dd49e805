"""Small problems, policies and defences for the defences' tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import Adam

from cnf_cli import plugins
from cnf_cli.defences.base import Clock
from cnf_cli.engine import get_engine
from cnf_cli.problems.instances import Instances


def small_problem(kind: str = "tsp", n: int = 5) -> Any:
    """A problem whose instances have n nodes to visit."""
    module = plugins.load("problems", kind)
    return module.Problem(module.Params(n=n))


def small_models(problem: Any, count: int = 3, seed: int = 1) -> list[Any]:
    """Policies of width 16 with different weights."""
    module = plugins.load("policies", "pomo")
    params = module.Params(width=16, layers=1, heads=4, feed_forward=32)
    rngs = [torch.Generator().manual_seed(seed + j) for j in range(count)]
    return [module.Policy(params, problem).init(rng) for rng in rngs]


def small_attack(problem: Any, **keys: Any) -> Any:
    """The attribute attack on the torch engine."""
    module = plugins.load("attacks", "attribute")
    return module.Attack(module.Params(**keys), problem, get_engine("torch"))


def small_defence(kind: str, problem: Any, attack: Any = None, batch: int = 4, **keys: Any) -> Any:
    """A defence, not yet set up."""
    module = plugins.load("defences", kind)
    params = module.Params(defence=kind, batch_size=batch, **keys)
    return module.Defence(params, problem=problem, engine=get_engine("torch"), attack=attack or small_attack(problem))


class Run:
    """One defence, its models and what they need to take a step; equal seeds make equal runs."""

    def __init__(self, kind: str, problem: Any, *, models: Any = None, batch: int = 4, attack: Any = None, **keys: Any):
        self.defence = small_defence(kind, problem, attack, batch, **keys)
        self.models = copy.deepcopy(models) if models else small_models(problem)
        self.optimizers = [Adam(m.parameters(), lr=1e-3) for m in self.models]
        self.rng = torch.Generator().manual_seed(7)
        self.clean: Instances = problem.sample(batch, rng=torch.Generator().manual_seed(3))
        self.defence.setup(self.models, "cpu", self.rng)

    def plain_descent(self) -> None:
        """Every optimizer is plain gradient descent: Adam turns the rounding of tiny gradients into whole steps."""
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in self.models]
        for name, module in self.defence.modules().items():
            setattr(self.defence, f"{name}_optimizer", torch.optim.SGD(module.parameters(), lr=0.1))

    def step(self, clean: Instances | None = None, clock: Clock | None = None, **more: Any) -> dict[str, float]:
        """One step's metrics."""
        clock = clock or Clock(0, 0, 0.0)
        batch = self.clean if clean is None else clean
        return self.defence.step(self.models, self.optimizers, batch, clock=clock, rng=self.rng, **more)

    def weights(self) -> list[torch.Tensor]:
        """Every parameter of the models and of the defence's own modules, copied."""
        modules = [*self.models, *self.defence.modules().values()]
        return [p.detach().clone() for module in modules for p in module.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 0.0) -> bool:
    """True when both lists hold the same numbers within the tolerance."""
    return len(a) == len(b) and all((x - y).abs().max() <= tolerance for x, y in zip(a, b, strict=True))
