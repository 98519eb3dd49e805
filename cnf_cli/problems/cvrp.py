"""Capacitated vehicle routing: serve every customer's demand with full vehicles from one depot, on the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from cnf_cli.problems import sampling, varied
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.load import whole_units
from cnf_cli.problems.project import DemandRule, How, project_demand
from cnf_cli.recipe.sections import ProblemSection

CAPACITY = {20: 30, 50: 40, 100: 50, 200: 70}
"""Units a vehicle carries, as the literature sets them for these numbers of customers."""


class Params(ProblemSection):
    """Keys of `[problem]` for kind = "cvrp"."""

    added: ClassVar[tuple[str, ...]] = ("depots", "demands", "capacities")
    kind: str = Field("cvrp", description="problem plugin: `cnf list problems`")
    capacity: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description="units a vehicle carries; none = 30, 40, 50, 70 for n = 20, 50, 100, 200, else 30 + n/5",
    )
    demand_max: int = Field(9, ge=1, le=10**6, description="demands are whole units, uniform from 1 to this")
    depots: Literal["uniform", "varied"] = Field(
        "uniform", description="varied: middle, corner or anywhere, as in set X"
    )
    demands: Literal["uniform", "varied"] = Field("uniform", description="varied: one of set X's seven kinds, to 100")
    capacities: Literal["fixed", "varied"] = Field(
        "fixed", description="varied: for routes of 3 to 25 customers, mostly about 6, as in set X"
    )


class Problem(BaseProblem):
    """Euclidean CVRP in the unit square; node 0 is the depot."""

    kind = "cvrp"
    feature_groups = {"depot": 2, "node": 3}  # noqa: RUF012
    query = ("last", "load")
    movable = ("customers", "depot", "demand")
    depots = 1

    def __init__(self, params: Params) -> None:
        self.params = params

    def capacity(self, n: int) -> int:
        """Units a vehicle carries in generated instances with n customers."""
        return self.params.capacity or CAPACITY.get(n) or math.ceil(30 + n / 5)

    def sample(self, count: int, *, rng: torch.Generator, n: int | None = None, dist: str | None = None) -> Instances:
        """`count` maps of a depot and n customers with whole demands, none above the capacity."""
        n = n or self.params.n
        customers = sampling.coordinates(dist or self.params.dist, count, n, rng)
        depot = varied.depots(count, rng) if self.params.depots == "varied" else sampling.uniform(count, 1, rng)
        units = self._units(customers, rng)
        if self.params.capacities == "varied":
            capacity = varied.capacities(units, rng)
        else:
            capacity = torch.full((count,), float(self.capacity(n)), device=rng.device).maximum(units.amax(1))
        demand = torch.cat([torch.zeros(count, 1, device=rng.device), units / capacity[:, None]], 1)
        return Instances(torch.cat([depot, customers], 1), demand, capacity)

    def _units(self, customers: Float[Tensor, "b n 2"], rng: torch.Generator) -> Float[Tensor, "b n"]:
        if self.params.demands == "varied":
            return varied.demands(customers, rng)
        count, n, _ = customers.shape
        most = self.params.demand_max
        if self.params.capacities == "fixed":
            most = min(most, self.capacity(n))
        return torch.randint(1, most + 1, (count, n), generator=rng, device=rng.device).float()

    def features(self, inst: Instances) -> dict[str, Float[Tensor, "b k f"]]:
        """The depot's coordinates; each customer's coordinates and demand."""
        assert inst.xy is not None
        assert inst.demand is not None
        demand = inst.demand[:, 1:, None].to(inst.xy.dtype)
        return {"depot": inst.xy[:, :1], "node": torch.cat([inst.xy[:, 1:], demand], -1)}

    def masks(self, inst: Instances, names: Sequence[str]) -> dict[str, Bool[Tensor, "b n"]]:
        """Customers, depot and demands move separately; the depot's demand never does."""
        self._known(names)
        customer = (torch.arange(inst.nodes, device=inst.device) > 0).expand(len(inst), -1)
        fields: dict[str, Tensor] = {}
        if "customers" in names or "depot" in names:
            fields["xy"] = (customer & ("customers" in names)) | (~customer & ("depot" in names))
        if "demand" in names:
            fields["demand"] = customer
        return fields

    def project(
        self,
        inst: Instances,
        names: Sequence[str],
        how: How = "minmax",
        demand: DemandRule = "released",
        *,
        was: Instances | None = None,
    ) -> Instances:
        """Moved coordinates inside the unit square, moved demands whole units within the capacity.

        No demand is larger than those that are drawn, or than the largest of `was`.
        """
        masks = self.masks(inst, names)
        if "demand" in masks and inst.demand is not None and inst.capacity is not None:
            drawn = varied.LARGEST if self.params.demands == "varied" else self.params.demand_max
            largest = torch.full_like(inst.capacity, drawn)
            if was is not None and was.demand is not None and was.capacity is not None:
                largest = torch.maximum(largest, whole_units(was.demand, was.capacity)[0].amax(-1).to(largest.dtype))
            units = project_demand(inst.demand, inst.capacity, masks["demand"], demand, largest)
            inst = inst.with_(demand=units)
        return super().project(inst, names, how, demand, was=was)
