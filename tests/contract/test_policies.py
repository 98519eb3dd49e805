"""What holds for every policy, on every problem it can read: a new file in cnf_cli/policies is tested here."""

from __future__ import annotations

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.engine import get_engine, native
from cnf_cli.engine.base import Tables
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.policies.run import Encoder
from cnf_cli.problems.instances import Instances
from cnf_cli.problems.validate import check_tour

N, B = 7, 3
SMALL = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 16}
KINDS = plugins.kinds("policies")


def problem_of(kind: str):
    module = plugins.load("problems", kind)
    return module.Problem(module.Params(kind=kind, n=N))


def policy_of(kind: str, problem, seed: int = 1):
    """A small policy; keys that this kind does not have are left out."""
    module = plugins.load("policies", kind)
    keys = {key: value for key, value in SMALL.items() if key in module.Params.model_fields}
    return module.Policy(module.Params(kind=kind, **keys), problem).init(torch.Generator().manual_seed(seed)).eval()


def fits(kind: str, problem: str) -> bool:
    try:
        policy_of(kind, problem_of(problem))
    except RecipeError:
        return False
    return True


PAIRS = [(kind, problem) for kind in KINDS for problem in plugins.kinds("problems") if fits(kind, problem)]
pairs = pytest.mark.parametrize(("kind", "problem"), PAIRS)


def drawn(problem, count: int = B, seed: int = 3) -> Instances:
    return problem.sample(count, rng=torch.Generator().manual_seed(seed))


def differ(a: Tables, b: Tables) -> float:
    """The largest difference of two sets of tables, which must be made of the same parts."""
    one, two = dict(a.tensors()), dict(b.tensors())
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).detach().abs().max()) for name in one)


def test_every_policy_reads_some_problem_and_every_problem_has_a_policy() -> None:
    """No plugin stands alone: each policy fits a problem, and each problem the policy that its recipes begin with."""
    assert {kind for kind, _ in PAIRS} == set(KINDS)
    for problem in plugins.kinds("problems"):
        default = plugins.params("problems", problem).default_policy
        assert (default, problem) in PAIRS


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_it_cannot_read_is_refused_with_a_way_out(kind: str) -> None:
    """Where a policy cannot read a problem it says so when it is made, with what to type instead."""
    for name in plugins.kinds("problems"):
        if (kind, name) not in PAIRS:
            with pytest.raises(RecipeError) as caught:
                policy_of(kind, problem_of(name))
            assert caught.value.hint


@pairs
def test_first_weights_follow_from_the_generator_alone(kind: str, problem: str) -> None:
    """Equal generators give equal weights, another one others; the global random state plays no part."""
    torch.manual_seed(1)
    one = policy_of(kind, problem_of(problem)).state_dict()
    torch.manual_seed(2)
    two, other = (policy_of(kind, problem_of(problem), seed).state_dict() for seed in (1, 9))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert all(bool(tensor.isfinite().all()) for tensor in one.values())


@pairs
def test_saved_weights_are_the_whole_policy(kind: str, problem: str) -> None:
    """A policy with other first weights that is given these answers in the same bits."""
    where = problem_of(problem)
    inst, one, two = drawn(where), policy_of(kind, where), policy_of(kind, where, seed=2)
    assert isinstance(one, Encoder)
    with torch.no_grad():
        assert differ(one.encode(inst), two.encode(inst)) > 1e-3
        two.load_state_dict(one.state_dict())
        assert differ(one.encode(inst), two.encode(inst)) == 0


@pairs
def test_tables_have_the_shapes_of_the_interface(kind: str, problem: str) -> None:
    """One finite row for each node and instance, heads that divide the width, and the queries that the problem has."""
    where = problem_of(problem)
    inst = drawn(where)
    with torch.no_grad():
        tables = policy_of(kind, where).encode(inst)
    b, n, d = tables.last.shape
    assert (b, n, d % tables.heads) == (B, inst.nodes, 0)
    for name in ("key", "value", "pointer"):
        assert getattr(tables, name).shape == (b, n, d)
    assert tables.bias.shape == (b, n)
    assert (tables.first is not None) == ("first" in where.query)
    assert (tables.load is not None) == ("load" in where.query)
    assert tables.clip > 0
    assert all(bool(tensor.isfinite().all()) for _, tensor in tables.tensors())


@pairs
def test_an_instance_is_read_alike_whatever_its_batch(kind: str, problem: str) -> None:
    """In evaluation neither neighbours in the batch nor their order change what an instance's tables are."""
    where = problem_of(problem)
    inst, policy = drawn(where), policy_of(kind, where)
    with torch.no_grad():
        tables = dict(policy.encode(inst).tensors())
        for order in ([1], [2, 0]):
            for name, tensor in policy.encode(inst[order]).tensors():
                whole = tables[name][order] if tensor.ndim > 1 else tables[name]
                assert torch.allclose(tensor, whole, atol=1e-5), name


@pairs
def test_what_it_reads_changes_what_it_says(kind: str, problem: str) -> None:
    """Two different instances have different tables: nothing is answered without looking."""
    where = problem_of(problem)
    inst, policy = drawn(where), policy_of(kind, where)
    with torch.no_grad():
        tables = policy.encode(inst)
    assert float((tables.last[0] - tables.last[1]).abs().max()) > 1e-4
    assert float((tables.pointer[0] - tables.pointer[1]).abs().max()) > 1e-4


@pairs
def test_rollouts_are_tours_that_seeds_decide(kind: str, problem: str) -> None:
    """Greedy and sampled tours pass the judge, one for each start; equal seeds give equal tours, others others."""
    where, engine = problem_of(problem), TorchEngine()
    inst, policy = drawn(where), policy_of(kind, where)
    block = where.to_block(inst)
    with torch.no_grad():
        tables, world = policy.encode(inst), where.world(inst)
        greedy = engine.rollout(tables, world)
        one, two, other = (engine.rollout(tables, world, torch.arange(B) + k) for k in (1, 1, 50))
    assert torch.equal(one, two)
    assert one.shape != other.shape or not torch.equal(one, other)
    for tours in (greedy, one):
        assert tours.shape[:2] == (B, N)
        cost = where.cost(inst, tours)
        for i in range(B):
            about = {name: None if (x := getattr(block, name)) is None else x[i] for name in ("xy", "matrix", "demand")}
            room = None if block.capacity is None else float(block.capacity[i])
            for p in range(N):
                judged = check_tour(tours[i, p].tolist(), **about, capacity=room)
                assert judged == pytest.approx(float(cost[i, p]), abs=1e-4)


@pairs
def test_every_parameter_takes_part_in_a_step(kind: str, problem: str) -> None:
    """The log-probability of tours has a finite gradient by each parameter, which distributed training needs."""
    where, engine = problem_of(problem), TorchEngine()
    inst, policy = drawn(where), policy_of(kind, where).train()
    tables, world = policy.encode(inst), where.world(inst)
    tours = engine.rollout(tables.with_(**{k: v.detach() for k, v in tables.tensors()}), world, torch.arange(B))
    engine.log_prob(tables, world, tours).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name


@pairs
def test_second_order_tables_are_the_same_and_differentiable_twice(kind: str, problem: str) -> None:
    """`second_order` changes no number, and gradients by the instance can be differentiated again."""
    where = problem_of(problem)
    inst, policy = drawn(where), policy_of(kind, where)
    field = "xy" if inst.matrix is None else "matrix"
    leaf = getattr(inst, field).clone().requires_grad_()
    plain, twice = policy.encode(inst), policy.encode(inst.with_(**{field: leaf}), second_order=True)
    assert differ(plain, twice) <= 2e-4
    (slope,) = torch.autograd.grad(twice.pointer.square().sum(), leaf, create_graph=True)
    slope.square().sum().backward()
    found = [p.grad for p in policy.parameters() if p.grad is not None]
    assert found
    assert all(bool(grad.isfinite().all()) for grad in found)
    assert any(bool(grad.any()) for grad in found)


@pairs
@pytest.mark.skipif(not native.available(), reason="the native engine is not built")
def test_both_engines_make_the_same_tables(kind: str, problem: str) -> None:
    """The native engine's way through the layers differs from torch's by rounding."""
    where = problem_of(problem)
    inst, policy = drawn(where), policy_of(kind, where)
    with torch.no_grad():
        one, two = (policy.encode(inst, engine=get_engine(name)) for name in ("torch", "native"))
        assert differ(one, two) <= 1e-4
