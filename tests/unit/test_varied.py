"""CVRP instances whose depots, demands and capacities vary as in set X."""

from __future__ import annotations

import pytest
import torch

from cnf_cli.problems import cvrp, varied


def drawn(count: int, n: int = 40, **keys: str) -> tuple[cvrp.Problem, torch.Tensor, torch.Tensor, torch.Tensor]:
    problem = cvrp.Problem(cvrp.Params(n=n, **keys))  # type: ignore[arg-type]
    inst = problem.sample(count, rng=torch.Generator().manual_seed(3))
    assert inst.xy is not None
    assert inst.demand is not None
    assert inst.capacity is not None
    return problem, inst.xy, (inst.demand * inst.capacity[:, None])[:, 1:], inst.capacity


ALL = {"depots": "varied", "demands": "varied", "capacities": "varied"}


def test_demands_are_whole_and_fit() -> None:
    """All demands are whole units from 1 to 100, none above its vehicle's capacity, which is whole as well."""
    _, xy, units, capacity = drawn(300, **ALL)
    assert (units - units.round()).abs().max() < 1e-3
    assert units.min() > 0.99
    assert units.max() < 100.01
    assert (units.amax(1) <= capacity + 1e-3).all()
    assert torch.equal(capacity, capacity.round())
    assert xy.min() >= 0
    assert xy.max() <= 1


def test_routes_serve_as_many_customers_as_set_x_says() -> None:
    """A vehicle carries 3 to 25 mean demands, on average as many as the triangular distribution says."""
    _, _, units, capacity = drawn(4000, capacities="varied")
    served = capacity / units.mean(1)
    assert served.min() >= 3
    assert served.max() <= 25 + 1  # rounded up to a whole unit
    assert float(served.mean()) == pytest.approx(sum(varied.ROUTE) / 3, abs=0.3)
    assert (served.median() < served.mean()).item()  # skewed to short routes


def test_depots_are_in_the_middle_in_the_corner_or_anywhere() -> None:
    """A third of the depots each, within chance."""
    _, xy, _, _ = drawn(900, depots="varied")
    middle, corner = ((xy[:, 0] == place).all(1).float().mean() for place in (0.5, 0.0))
    assert float(middle) == pytest.approx(1 / 3, abs=0.06)
    assert float(corner) == pytest.approx(1 / 3, abs=0.06)


def test_every_kind_of_demand_occurs() -> None:
    """Among many instances there are unit demands, small and large ones, some by quadrant, and mostly small ones."""
    _, xy, units, _ = drawn(700, **ALL)
    units, low, high = units.round(), units.round().amin(1), units.round().amax(1)
    assert (high == 1).any()
    assert ((low < 3) & (high == 10)).any()
    assert ((low == 5) & (high <= 10)).any()
    assert ((low >= 50) & (high > 90)).any()
    same_side = (xy[:, 1:, 0] < 0.5) == (xy[:, 1:, 1] < 0.5)
    by_place = ((units <= 50) == same_side).all(1) & (high > 50) & (low <= 50)
    assert by_place.any()
    between = ((units > 10) & (units < 50)).any(1)
    assert (~between & (low <= 10) & (high >= 50) & ~by_place).any()


def test_defaults_draw_what_they_drew() -> None:
    """Without the keys, instances and identity are what they were."""
    _, _, units, capacity = drawn(5)
    assert (capacity == 38).all()
    assert units.max() < 9.01
    assert not {"depots", "demands", "capacities"} & cvrp.Params().identity().keys()
