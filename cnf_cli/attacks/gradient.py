"""Roll policies out and differentiate the attack's objective with respect to an instance's attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.engine.base import Engine, Tables, World
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.instances import Instances

_GRAPH = 1 << 24
"""Attention weights kept at once when demands are attacked: that path holds the whole graph of its instances."""


@dataclass(frozen=True)
class Seen:
    """Instances whose wanted attributes are leaves of the graph that made the tables."""

    leaves: dict[str, Tensor]
    inst: Instances
    tables: Tables


@dataclass(frozen=True)
class Rolled:
    """What a policy did on some instances."""

    tours: Int[Tensor, "b p t"]
    cost: Float[Tensor, "b p"]
    seen: Seen | None = None
    """Kept when the same encoding will be differentiated."""

    @property
    def best(self) -> Float[Tensor, " b"]:
        """The lowest cost over the starts."""
        return self.cost.amin(-1)

    def rows(self, index: slice | Tensor) -> Rolled:
        """The rollouts of some of the instances, without their graph."""
        return Rolled(self.tours[index], self.cost[index])


def see(policy: Encoder, engine: Engine, inst: Instances, wanted: Sequence[str]) -> Seen:
    """The policy's tables as a function of the wanted attributes."""
    leaves = {name: getattr(inst, name).detach().clone().requires_grad_() for name in wanted}
    moved = inst.detach().with_(**leaves)
    with torch.enable_grad():
        return Seen(leaves, moved, policy.encode(moved, engine=engine))


@torch.no_grad()
def roll(
    policy: Encoder, problem: Any, engine: Engine, inst: Instances, seeds: Tensor | None, wanted: Sequence[str] = ()
) -> Rolled:
    """One rollout from every start: greedy without seeds, else sampled; ready to be differentiated if `wanted`."""
    seen = see(policy, engine, inst, wanted) if wanted else None
    tables = seen.tables if seen else policy.encode(inst, engine=engine)
    plain = tables.with_(**{name: tensor.detach() for name, tensor in tables.tensors()})
    tours = engine.rollout(plain, problem.world(inst), seeds)
    return Rolled(tours, problem.cost(inst, tours), seen)


def gradient(
    policy: Encoder,
    problem: Any,
    engine: Engine,
    inst: Instances,
    rolled: Rolled,
    objective: str,
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    """d/dx of mean_p[(c_p / mean c) L_p] for each instance and wanted attribute ("xy", "demand"), tours held fixed.

    hac differentiates the costs too, greedy only the numerator, detached neither; advantage weighs by c / mean c - 1.
    """
    if "demand" not in wanted:
        return _gradient(policy, problem, engine, inst, rolled, objective, wanted)
    p, t = rolled.tours.shape[1:]
    most = max(1, _GRAPH // max(1, p * t * inst.nodes * 8))
    parts = [
        _gradient(policy, problem, engine, inst[i : i + most], rolled.rows(slice(i, i + most)), objective, wanted)
        for i in range(0, len(inst), most)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.enable_grad()
def _gradient(
    policy: Encoder,
    problem: Any,
    engine: Engine,
    inst: Instances,
    rolled: Rolled,
    objective: str,
    wanted: Sequence[str],
) -> dict[str, Tensor]:
    seen = rolled.seen or see(policy, engine, inst, wanted)
    leaves, world = seen.leaves, problem.world(seen.inst)
    cost = problem.cost(seen.inst, rolled.tours)
    share = ratio(cost, detach=objective == "greedy")
    weight = share.detach() - (1.0 if objective == "advantage" else 0.0)
    total, log_prob = _score(engine, seen.tables, world, rolled.tours, weight)
    if objective in ("hac", "greedy"):
        total = total + (log_prob.detach() * share).sum(-1)
    found = torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True)
    count = rolled.tours.shape[1]
    return {
        name: torch.zeros_like(leaf) if grad is None else grad / count
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def _score(engine: Engine, tables: Tables, world: World, tours: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(sum_p weight_p L_p, L), differentiable through the tables, and through the load when demands are attacked."""
    if world.demand is None or not world.demand.requires_grad:
        return engine.score(tables, world, tours, weight)
    log_prob = TorchEngine().log_prob(tables, world, tours)
    return (weight * log_prob).sum(-1), log_prob


def ratio(cost: Float[Tensor, "b p"], *, detach: bool = False) -> Float[Tensor, "b p"]:
    """c_p / mean_p c, and 1 where all nodes coincide and every tour costs nothing."""
    mean = cost.mean(-1, keepdim=True)
    mean = mean.detach() if detach else mean
    none = mean <= 1e-12
    return torch.where(none, torch.ones_like(cost), cost / torch.where(none, torch.ones_like(mean), mean))
