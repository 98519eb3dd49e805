"""The released attack computes what the published code computes, and so do ROCO's candidates (golden files)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cnf_cli.attacks.gradient import Rolled, gradient
from cnf_cli.attacks.roco_edges import candidates
from cnf_cli.plugins import load
from cnf_cli.problems.instances import Instances
from tests.unit.published_kit import (
    CAPACITY,
    EXACT,
    SIDES,
    Golden,
    Side,
    far,
    golden,
    instances,
    policy_of,
    precision,
    problem_of,
    relative,
)

CASES = [(kind, size) for kind in ("tsp", "cvrp") for size in ("small", "paper")]


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, shared: Path) -> tuple[str, str, Golden]:
    kind, size = request.param
    return kind, size, golden(shared, f"pomo_{kind}").below(size).below("attack")


def released(kind: str, engine: Any, seeds: Tensor, **keys: Any) -> Any:
    """The attack in mode released whose t-th step samples with the t-th row of seeds."""
    module = load("attacks", "attribute")

    class Seeded(module.Attack):  # type: ignore[misc, name-defined]
        rows = iter(seeds)

        def _seeded(self, policies: Any, inst: Instances, rng: torch.Generator) -> list[Any]:
            row = next(self.rows)
            return [(policy, row) for policy in policies]

    return Seeded(module.Params(mode="released", **keys), problem_of(kind), engine)


@pytest.mark.parametrize("side", SIDES)
def test_the_attacks_gradient_is_the_published_one(case: Any, side: Side) -> None:
    """dJ/dx of each instance on given tours, costs differentiated too; with demands, by demand as well."""
    kind, size, file = case
    policy, inst, given = policy_of(kind, size, side), instances(file, side), file.below("gradient")
    tours = given.tensor("tours")
    wanted = ("xy",) if kind == "tsp" else ("xy", "demand")
    problem = problem_of(kind)
    with precision(side) as engine:
        rolled = Rolled(tours, problem.cost(inst, tours))
        found = gradient(policy, problem, engine, inst, rolled, "hac", wanted)
    exact = side.pick(1e-10, 4e-4)
    if kind == "tsp":
        pairs = [(found["xy"], given.tensor("d_J_d_xy"))]
    else:
        pairs = [(found["xy"][:, 1:], given.tensor("d_J_d_customers"))]
        pairs.append((found["demand"][:, 1:], given.tensor("d_J_d_demand_share")))
    for got, want in pairs:
        for i in range(len(want)):
            assert relative(got[i], want[i]) <= exact


def test_attacked_maps_are_the_published_ones(case: Any) -> None:
    """The released attack on six maps as one batch, for each stored alpha, number of steps and set of attributes."""
    kind, size, file = case
    names = sorted({name.split("/")[0] for name in file if name.startswith("alpha")})
    assert names
    for name in names:
        given, steps = file.below(name), int(name.split("_T")[1][0])
        keys = {"attributes": ("customers", "demand")} if name.endswith("demand") else {}
        inst = instances(file, EXACT)
        step = torch.full((len(inst),), float(name.removeprefix("alpha").split("_")[0]))
        with precision(EXACT) as engine:
            attack = released(kind, engine, given.tensor("seeds"), steps=steps, **keys)
            rng = torch.Generator()
            out = attack([policy_of(kind, size, EXACT)], inst, rng=rng, step=step).instances
        close_to = 2e-8 if steps == 1 else 1e-7
        if kind == "tsp":
            assert far(out.xy, given.tensor("xy")) <= close_to, name
            continue
        assert far(out.xy[:, 1:], given.tensor("customers")) <= close_to, name
        assert torch.equal(out.xy[:, :1], inst.xy[:, :1])
        assert torch.equal((out.demand[:, 1:] * CAPACITY).round().long(), given.tensor("demand_units")), name


@pytest.mark.parametrize("side", SIDES[1:])
def test_attacked_maps_in_single_precision(case: Any, side: Side) -> None:
    """One step of the native engine comes as close as float32 can."""
    kind, size, file = case
    given, inst = file.below("alpha50_T1"), instances(file, side)
    with precision(side) as engine:
        attack = released(kind, engine, given.tensor("seeds"), steps=1)
        out = attack([policy_of(kind, size, side)], inst, rng=torch.Generator(), step=torch.full((len(inst),), 50.0))
    got = out.instances.xy if kind == "tsp" else out.instances.xy[:, 1:]
    assert far(got, given.tensor("xy" if kind == "tsp" else "customers")) <= 1.5e-4


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("alpha", [1, 50])
def test_attacked_matrices_are_the_published_ones_off_the_diagonal(shared: Path, side: Side, alpha: int) -> None:
    """One released step on four cost matrices; the diagonal, which the published code moves, stays 0 here."""
    file = golden(shared, "matnet_atsp")
    for size in ("small", "paper") if side is EXACT else ("small",):
        given = file.below(size).below("attack")
        inst = Instances(matrix=file.tensor("matrix", side.dtype), seed=file.tensor("instance_seed"))
        with precision(side) as engine:
            attack = released("atsp", engine, given.tensor("seeds")[None], steps=1)
            step = torch.full((len(inst),), float(alpha))
            out = attack([policy_of("atsp", size, side)], inst, rng=torch.Generator(), step=step).instances
        want = given.tensor(f"alpha{alpha}_T1/matrix")
        off = ~torch.eye(20, dtype=torch.bool).expand_as(want)
        assert far(out.matrix[off], want[off]) <= side.pick(1e-9, 3e-4)
        assert not out.matrix[~off].any()
        assert want[~off].all()


def test_rocos_candidates_are_the_published_ones(shared: Path) -> None:
    """Which directed edges may be halved: on the first level those of the tour at any cost, then those off it."""
    file = golden(shared, "roco_candidates")
    matrix, tour = file.tensor("matrix"), file.tensor("tour")
    assert torch.equal(candidates(matrix, tour, "tour"), torch.from_numpy(file["first_level"]))
    assert torch.equal(candidates(matrix, tour, "released"), torch.from_numpy(file["off_tour"]))
    cheap = matrix <= 1e-4
    assert (cheap & torch.from_numpy(file["first_level"])).any()  # the file tells the rules apart
