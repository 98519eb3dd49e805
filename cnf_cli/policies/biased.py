"""A bias at decoding: any policy, trained without, prefers near nodes by more than its network says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from cnf_cli.engine.base import Engine, Tables
from cnf_cli.policies.distance import apart, nearness
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances

Rates = tuple[float, ...] | Literal["auto"]


class Biased(nn.Module):
    """Adds -rate * ln(distance in map widths, 0.001 at least) to what each node's score says before the clip."""

    def __init__(self, policy: Any, problem: BaseProblem, rates: Rates, copy: Int[Tensor, " b"] | None = None) -> None:
        super().__init__()
        self.policy, self.problem, self.rates, self.copy = policy, problem, rates, copy

    def encode(self, inst: Instances, *, second_order: bool = False, engine: Engine | None = None) -> Tables:
        """The policy's tables, with the bias on top of its own."""
        tables: Tables = self.policy.encode(inst, second_order=second_order, engine=engine)
        rates = self._rates(inst.nodes - self.problem.depots, tables)
        if not any(rates):
            return tables
        rate = torch.tensor(rates, dtype=tables.key.dtype, device=tables.key.device)
        each = rate[:1] if self.copy is None else rate[self.copy.to(rate.device) % len(rate)]
        near = each[:, None, None] * nearness(apart(self.problem, inst))
        return tables.with_(near=near if tables.near is None else tables.near + near)

    def _rates(self, n: int, tables: Tables) -> tuple[float, ...]:
        if self.rates != "auto":
            return self.rates
        return (0.0,) if tables.near is not None else (automatic(n),)

    def at(self, copy: Int[Tensor, " b"]) -> Biased:
        """The same for a batch of these copies: copy k takes the rate k, and after the last the first again."""
        return Biased(self.policy, self.problem, self.rates, copy)


def biased(policies: Sequence[Any], problem: BaseProblem, rates: Rates) -> list[Any]:
    """The policies with that bias; as they are where there is none."""
    return [Biased(policy, problem, rates) for policy in policies] if rates else list(policies)


def automatic(n: int) -> float:
    """The rate for n nodes: what was best, or nearly, on TSP and CVRP maps of 20 to 400 nodes (docs/evaluate.md)."""
    return min(0.4, 0.0015 * n)
