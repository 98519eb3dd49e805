"""What every attack plugin owes the rest: these tests run over each file found in cnf_cli/attacks."""

from __future__ import annotations

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.attacks.base import MOVED, Attacked, checks
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.problems.instances import Instances

COUNT, N = 5, 6
QUICK = {"roco": {"steps": 3, "calls": 4, "at_least_one": True, "episodes": 10, "fit_batch": 5, "update_epochs": 1}}
"""Keys that make an attack quick, and let it act on the smallest instances, where its defaults do not."""


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Case:
    """One attack with its default keys on one problem."""

    def __init__(self, kind: str, on: str) -> None:
        problems, attacks = plugins.load("problems", on), plugins.load("attacks", kind)
        self.kind, self.problem = kind, problems.Problem(problems.Params(n=N))
        try:
            self.attack = attacks.Attack(attacks.Params(**QUICK.get(kind, {})), self.problem, TorchEngine())
        except RecipeError as error:
            pytest.skip(f"{kind} does not attack {on}: {error.message} ({error.hint})")
        module = plugins.load("policies", problems.Params().default_policy)
        params = module.Params(width=8, layers=1, heads=2, feed_forward=8)
        self.policies = [module.Policy(params, self.problem).init(rng(j)) for j in range(2)]
        self.clean: Instances = self.problem.sample(COUNT, rng=rng(1))

    def __call__(self, clean: Instances | None = None, models: int = 1, seed: int = 3) -> Attacked:
        found: Attacked = self.attack(self.policies[:models], self.clean if clean is None else clean, rng=rng(seed))
        return found


@pytest.fixture(params=plugins.kinds("attacks"))
def kind(request: pytest.FixtureRequest) -> str:
    """Every attack."""
    return str(request.param)


@pytest.fixture(params=plugins.kinds("problems"))
def case(kind: str, request: pytest.FixtureRequest) -> Case:
    """Every attack on every problem that it says it can attack."""
    return Case(kind, request.param)


def values(inst: Instances) -> dict[str, torch.Tensor]:
    return {k: v for k, v in vars(inst).items() if v is not None}


def test_kind_is_the_file_name(kind: str) -> None:
    """The plugin calls itself what its file is called, explains itself in a line, and can be read without torch."""
    assert plugins.params("attacks", kind)().kind == kind  # type: ignore[attr-defined]
    assert plugins.summary("attacks", kind)


def test_every_attack_attacks_something(kind: str) -> None:
    """No attack refuses every problem, which would skip all the tests below."""
    for on in plugins.kinds("problems"):
        problems, attacks = plugins.load("problems", on), plugins.load("attacks", kind)
        try:
            attacks.Attack(attacks.Params(), problems.Problem(problems.Params(n=N)), TorchEngine())
        except RecipeError:
            continue
        return
    pytest.fail(f"{kind} attacks none of {plugins.kinds('problems')}")


@pytest.mark.parametrize("models", [1, 2])
def test_count_shape_and_validity_stay(case: Case, models: int) -> None:
    """As many instances of the same shape, all finite, on the map, with demands a vehicle can carry."""
    out = case(models=models).instances
    assert len(out) == COUNT
    for name, tensor in values(out).items():
        assert tensor.shape == values(case.clean)[name].shape
        assert tensor.dtype == values(case.clean)[name].dtype
        assert tensor.isfinite().all()
        assert not tensor.requires_grad
    if out.xy is not None:
        assert ((out.xy >= 0) & (out.xy <= 1)).all()
    if out.demand is not None:
        assert ((out.demand >= 0) & (out.demand <= 1)).all()
        assert (out.demand[:, 0] == 0).all()
    if out.matrix is not None:
        assert ((out.matrix >= 0) & (out.matrix <= 1)).all()
        assert (out.matrix.diagonal(dim1=1, dim2=2) == 0).all()


def test_order_stays(case: Case) -> None:
    """Numbers of instance i are in row i: maps that grow fourfold from row to row have costs that grow with them."""
    if case.clean.xy is None:
        pytest.skip("no coordinates here")
    scale = 4.0 ** -torch.arange(COUNT - 1, -1, -1)
    out = case(case.clean.with_(xy=case.clean.xy[:1] * scale[:, None, None]), models=2)
    assert all(v.shape == (COUNT,) for v in out.stats.values())
    for costs in (out.clean_cost, out.stats.get("cost_before")):
        if costs is not None:
            assert (costs.reshape(COUNT, -1).diff(dim=0) > 0).all()


def test_same_generator_same_result(case: Case) -> None:
    """The result is a function of the generator's state; torch's global state is neither read nor changed."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = case()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two, other = case(), case(seed=4)
    assert all(torch.equal(v, values(two.instances)[k]) for k, v in values(one.instances).items())
    assert any(not torch.equal(v, values(other.instances)[k]) for k, v in values(one.instances).items())


def test_the_input_is_not_changed(case: Case) -> None:
    """The clean instances and the policies' weights are as they were."""
    clean = {k: v.clone() for k, v in values(case.clean).items()}
    weights = [w.clone() for w in case.policies[0].parameters()]
    case()
    assert all(torch.equal(v, clean[k]) for k, v in values(case.clean).items())
    assert all(torch.equal(w, v) for w, v in zip(case.policies[0].parameters(), weights, strict=True))
    assert all(w.grad is None for w in case.policies[0].parameters())


def test_depot_and_demands_stay_unless_asked(case: Case) -> None:
    """By default only places of customers change."""
    out = case().instances
    if case.clean.demand is None or case.clean.xy is None:
        pytest.skip("no depot here")
    assert torch.equal(out.demand, case.clean.demand)
    assert torch.equal(out.capacity, case.clean.capacity)
    assert torch.equal(out.xy[:, 0], case.clean.xy[:, 0])
    assert not torch.equal(out.xy, case.clean.xy)


def test_stats_tell_the_truth(case: Case) -> None:
    """Displacements in the stats are those of the instances, and every number is finite."""
    out = case()
    assert all(v.isfinite().all() for v in out.stats.values())
    if out.instances.xy is not None and case.clean.xy is not None:
        moved = (out.instances.xy - case.clean.xy).norm(dim=-1)
        torch.testing.assert_close(out.stats["moved_mean"], moved.mean(-1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(out.stats["moved_max"], moved.amax(-1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(out.stats["nodes_moved"], (moved > MOVED).float().mean(-1))
    assert isinstance(checks(out.stats)["warnings"], list)


def test_degenerate_instances_stay_finite(case: Case) -> None:
    """All nodes equal, duplicates, nodes on a line and demands equal to the capacity give valid instances, no NaN."""
    if case.clean.xy is None:
        pytest.skip("no coordinates here")
    xy = case.clean.xy.clone()
    xy[0] = 0.5
    xy[1, 1:] = xy[1, :1]
    xy[2, :, 1] = 0.25
    xy[3] = 0
    hard = case.clean.with_(xy=xy)
    if hard.demand is not None:
        full = hard.demand.clone()
        full[:, 1:] = 1
        hard = hard.with_(demand=full)
    for models in (1, 2):
        out = case(hard, models=models)
        assert all(v.isfinite().all() for v in (*values(out.instances).values(), *out.stats.values()))
        assert out.instances.xy is not None
        assert ((out.instances.xy >= 0) & (out.instances.xy <= 1)).all()


def test_no_instances_and_one_instance(case: Case) -> None:
    """An empty batch stays empty; a batch of one works."""
    assert len(case(case.clean[:0]).instances) == 0
    assert len(case(case.clean[:1]).instances) == 1


def test_drawn_steps_can_be_given_back(case: Case) -> None:
    """Steps drawn beforehand and passed in are used: a set attacked in parts shares one draw."""
    step = case.attack.draw(COUNT, rng(3))
    assert step.shape == (COUNT,)
    out = case.attack(case.policies[:1], case.clean, rng=rng(3), step=step)
    assert torch.equal(out.stats["alpha"], step)
