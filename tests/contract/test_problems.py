"""What every problem plugin owes the rest: these tests run over each file found in cnf_cli/problems."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.engine.base import Tables
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.validate import InvalidTour

D = 8


@pytest.fixture(params=plugins.kinds("problems"))
def problem(request: pytest.FixtureRequest) -> BaseProblem:
    """One problem of each kind, with its default keys."""
    module = plugins.load("problems", request.param)
    found: BaseProblem = module.Problem(module.Params())
    return found


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tables_for(problem: BaseProblem, inst: Instances) -> Tables:
    """A decoder with random weights: tours need no good policy to be tested."""
    b, n = len(inst), inst.nodes
    last, key, value, pointer = (torch.randn(b, n, D, generator=rng(i)) for i in range(4))
    first = torch.randn(b, n, D, generator=rng(5)) if "first" in problem.query else None
    load = torch.randn(D, generator=rng(6)) if "load" in problem.query else None
    return Tables(last, key, value, pointer, torch.zeros(b, n), 2, 10.0, first, load)


def same(a: Instances, b: Instances, **tolerance: float) -> bool:
    pairs = [(vars(a)[k], vars(b)[k]) for k in vars(a)]
    return all((x is None and y is None) or torch.allclose(x, y, **tolerance) for x, y in pairs)


def test_kind_is_the_file_name(problem: BaseProblem) -> None:
    """The plugin calls itself what its file is called, and its recipe table says the same."""
    assert type(problem).__module__ == f"cnf_cli.problems.{problem.kind}"
    assert plugins.params("problems", problem.kind)().kind == problem.kind  # type: ignore[attr-defined]
    assert plugins.summary("problems", problem.kind)


def test_samples_follow_the_generator(problem: BaseProblem) -> None:
    """The same generator state gives the same instances, another gives others, and torch's global state is not used."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (problem.sample(3, rng=rng(s), n=6) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(one, two, rtol=0, atol=0)
    assert not same(one, other)
    assert len(one) == 3
    assert one.nodes == 6 + problem.depots


@pytest.mark.parametrize("dist", ["uniform", "rotation", "explosion", "gaussian_mixture"])
def test_samples_lie_in_the_domain(problem: BaseProblem, dist: str) -> None:
    """Every distribution yields finite instances in the unit square whose demands fit the vehicle."""
    inst = problem.sample(50, rng=rng(), n=12, dist=dist)
    if inst.xy is not None:
        assert inst.xy.min() >= 0
        assert inst.xy.max() <= 1
    if inst.demand is not None:
        assert (inst.demand[:, 0] == 0).all()
        assert inst.demand[:, 1:].min() > 0
        assert inst.demand.max() <= 1


def test_features_match_their_groups(problem: BaseProblem) -> None:
    """Features come in the declared groups and widths and cover all nodes."""
    inst = problem.sample(2, rng=rng(), n=5)
    groups = problem.features(inst)
    assert {k: v.shape[-1] for k, v in groups.items()} == dict(problem.feature_groups)
    assert sum(v.shape[1] for v in groups.values()) == inst.nodes


def test_starts(problem: BaseProblem) -> None:
    """By default a rollout starts at every node but the depot; a smaller number is spread evenly, without repeats."""
    inst = problem.sample(2, rng=rng(), n=11)
    every = list(range(problem.depots, inst.nodes))
    assert problem.world(inst).starts.tolist() == every
    some = problem.world(inst, 4).starts.tolist()
    assert len(set(some)) == 4
    assert set(some) <= set(every)
    assert max(b - a for a, b in itertools.pairwise(some)) <= 3
    assert problem.world(inst, 99).starts.tolist() == every


@pytest.mark.parametrize("n", [2, 3, 9])
def test_rollouts_are_feasible_and_cost_what_they_say(problem: BaseProblem, n: int) -> None:
    """Every sampled tour passes the independent validator at the same cost (promise 20)."""
    inst = problem.sample(4, rng=rng(n), n=n)
    tours = TorchEngine().rollout(tables_for(problem, inst), problem.world(inst), torch.arange(4))
    cost = problem.cost(inst, tours)
    for i in range(4):
        for p, tour in enumerate(tours[i]):
            assert problem.check(inst, i, tour) == pytest.approx(float(cost[i, p]), rel=1e-5)


def test_check_refuses_a_wrong_tour(problem: BaseProblem) -> None:
    """A tour that leaves out a node is invalid."""
    inst = problem.sample(1, rng=rng(), n=5)
    with pytest.raises(InvalidTour):
        problem.check(inst, 0, [0, 1, 2, 3])


def test_augmented_copies_cost_the_same(problem: BaseProblem) -> None:
    """Copies lie in instance-major order, copy 0 is the instance, and a tour costs the same on every copy."""
    inst = problem.sample(3, rng=rng(), n=7)
    copies = problem.augment(inst, 8)
    assert len(copies) == 24
    assert same(copies[0::8], inst, rtol=0, atol=0)
    assert same(problem.augment(inst, 3)[2::3], copies[2::8], rtol=0, atol=0)
    tours = TorchEngine().rollout(tables_for(problem, inst), problem.world(inst))
    cost = problem.cost(inst, tours).repeat_interleave(8, 0)
    assert torch.allclose(problem.cost(copies, tours.repeat_interleave(8, 0)), cost, rtol=1e-5)


def test_the_copies_of_a_problem_are_those_it_declares(problem: BaseProblem) -> None:
    """The most copies that its `Params` allow can be made, copy for copy those of fewer; one more cannot."""
    about: Any = plugins.params("problems", problem.kind)
    inst, most = problem.sample(1, rng=rng(), n=5), about.copies[-1]
    assert same(problem.augment(inst, most)[:2], problem.augment(inst, 2), rtol=0, atol=0)
    assert about.usual_copies in about.copies
    for count in (0, most + 1):
        with pytest.raises(ValueError, match=str(count)):
            problem.augment(inst, count)


def test_blocks_keep_the_instances(problem: BaseProblem) -> None:
    """Instances survive the way through the data set format, and normalising changes neither shape nor demand."""
    inst = problem.sample(3, rng=rng(), n=7)
    block = problem.to_block(inst, names=("a", "b", "c"))
    assert block.names == ("a", "b", "c")
    back = problem.from_block(block)
    assert same(back, inst, rtol=1e-7, atol=0)
    fitted = problem.scaled([block], "fit")[0].instances
    if fitted.xy is not None and inst.xy is not None:
        assert fitted.xy.amin((1, 2)).tolist() == [0, 0, 0]
        assert fitted.xy.amax((1, 2)).tolist() == [1, 1, 1]
        assert same(fitted.with_(xy=back.xy), back, rtol=0, atol=0)


def test_projection_of_each_movable(problem: BaseProblem) -> None:
    """Whatever an attack does to one attribute, projection makes it valid again and leaves the others alone."""
    inst = problem.sample(4, rng=rng(), n=9)
    for name in problem.movable:
        masks = problem.masks(inst, [name])
        moved = inst
        for field, mask in masks.items():
            value = getattr(inst, field)
            wide = mask[..., None].expand_as(value) if mask.ndim < value.ndim else mask
            moved = moved.with_(
                **{field: torch.where(wide, value + 3 * torch.randn(value.shape, generator=rng(1)), value)}
            )
        back = problem.project(moved, [name])
        problem.from_block(problem.to_block(back))  # refuses demands that do not fit and values that are not finite
        for field in ("xy", "demand", "capacity", "matrix"):
            was, now = getattr(inst, field), getattr(back, field)
            if was is not None and field in masks:
                wide = masks[field][..., None].expand_as(was) if masks[field].ndim < was.ndim else masks[field]
                assert torch.equal(now[~wide], was[~wide])
                assert now.min() >= 0
                assert now.max() <= 1
                assert not torch.equal(now, was)
            elif was is not None:
                assert torch.equal(now, was)


def test_unknown_movable_is_named(problem: BaseProblem) -> None:
    """Asking for an attribute that does not exist says which do."""
    with pytest.raises(ValueError, match=problem.movable[0]):
        problem.masks(problem.sample(1, rng=rng(), n=4), ["colour"])


@pytest.mark.parametrize("shape", ["equal", "collinear", "duplicates", "full"])
def test_degenerate_instances_stay_finite(problem: BaseProblem, shape: str) -> None:
    """Cost, its gradient and projection are finite for maps without extent and full demands (promise 16)."""
    for n in (2, 3, 6):
        inst = problem.sample(2, rng=rng(), n=n)
        if inst.xy is not None:
            xy = inst.xy.clone()
            if shape == "equal":
                xy[:] = 0.25
            if shape == "collinear":
                xy[..., 1] = 0.5
            if shape == "duplicates":
                xy[:, 1:] = xy[:, :1]
            inst = inst.with_(xy=xy.requires_grad_())
        if shape == "full" and inst.demand is not None:
            inst = inst.with_(demand=(torch.arange(inst.nodes) > 0).float().expand(2, -1))
        plain = inst.detach()
        tours = TorchEngine().rollout(tables_for(problem, plain), problem.world(plain), torch.arange(2))
        cost = problem.cost(inst, tours)
        assert torch.isfinite(cost).all()
        for i in range(2):
            assert problem.check(plain, i, tours[i, 0]) == pytest.approx(float(cost[i, 0].detach()), rel=1e-5, abs=1e-6)
        if inst.xy is not None:
            assert torch.isfinite(torch.autograd.grad(cost.sum(), inst.xy)[0]).all()
        for how in ("minmax", "if_needed", "clip"):
            back = problem.project(plain, problem.movable, how)  # type: ignore[arg-type]
            assert all(torch.isfinite(v).all() for v in vars(back).values() if v is not None)
            problem.to_block(back)
