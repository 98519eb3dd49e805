"""The bias at decoding: what it adds for any policy, in turn over copies, on its own or on top of a learned one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cnf_cli import plugins
from cnf_cli.engine import get_engine
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.policies.biased import Biased, automatic, biased
from cnf_cli.policies.distance import FLOOR, apart
from cnf_cli.policies.run import solve
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.build import build_section
from cnf_cli.recipe.sections import AttackSection, EvaluateSection
from tests.helpers import cnf

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}


def made(kind: str, n: int = 10, **keys: Any) -> tuple[BaseProblem, Any, Instances]:
    module = plugins.load("problems", kind)
    problem = module.Problem(module.Params(n=n))
    network = plugins.load("policies", module.Params.default_policy)
    policy = network.Policy(network.Params(**SMALL, feed_forward=16, **keys), problem)
    rng = torch.Generator().manual_seed(3)
    return problem, policy.init(rng).eval(), problem.sample(4, rng=rng)


@pytest.mark.parametrize("kind", ["tsp", "cvrp", "atsp"])
def test_the_bias_is_minus_rate_times_log_distance(kind: str) -> None:
    """Any policy's scores get -rate * ln of the distance in map widths, floored; a matrix is its own distances."""
    problem, policy, inst = made(kind)
    with torch.no_grad():
        tables = Biased(policy, problem, (0.3,)).encode(inst)
        plain = policy.encode(inst)
    far = problem.distances(inst)
    width = far.amax((1, 2)) if inst.xy is None else (inst.xy.amax(1) - inst.xy.amin(1)).amax(1)
    expected = -0.3 * (far / width[:, None, None]).clamp_min(FLOOR).log()
    assert plain.near is None
    assert tables.near is not None
    assert torch.allclose(tables.near, expected, atol=1e-6)
    assert torch.equal(tables.pointer, plain.pointer)


@pytest.mark.parametrize("kind", ["tsp", "cvrp"])
def test_engines_agree_under_the_bias(kind: str) -> None:
    """Tours of a biased policy are the same in both engines, and others than without: the bias is felt."""
    problem, policy, inst = made(kind)
    strong = Biased(policy, problem, (2.0,))
    tables, world = strong.encode(inst), problem.world(inst)
    with torch.no_grad():
        ours, theirs = (engine.rollout(tables, world) for engine in (get_engine(), TorchEngine()))
        plain = TorchEngine().rollout(policy.encode(inst), world)
    assert torch.equal(ours, theirs)
    assert plain.shape != ours.shape or not torch.equal(plain, ours)
    assert problem.cost(inst, ours).mean() < problem.cost(inst, plain).mean()  # the network is untrained


@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_copies_take_the_rates_in_turn(chunk: int) -> None:
    """With rates a, b copy 0 is solved at a and copy 1 at b, whatever is solved together."""
    problem, policy, inst = made("tsp")
    both = solve([Biased(policy, problem, (0.0, 1.5))], problem, inst, get_engine(), augment=2, chunk=chunk)
    copies = problem.augment(inst, 2)
    alone = [
        solve([Biased(policy, problem, (rate,))], problem, copies[k::2], get_engine(), augment=1).cost[0]
        for k, rate in enumerate((0.0, 1.5))
    ]
    assert torch.allclose(both.cost[0], torch.minimum(*alone), rtol=1e-6)
    assert torch.allclose(both.cost_plain[0], alone[0])
    assert not torch.allclose(*alone)


def test_auto_adds_nothing_to_what_was_learned() -> None:
    """`auto` goes by the number of nodes, and is nothing for a policy with a learned bias; a rate counts on top."""
    problem, plain, inst = made("tsp")
    _, learned, _ = made("tsp", pointer_bias=True)
    with torch.no_grad():
        by_rule = Biased(plain, problem, "auto").encode(inst).near
        by_rate = Biased(plain, problem, (automatic(10),)).encode(inst).near
        own, untouched, on_top = (
            policy.encode(inst).near
            for policy in (learned, Biased(learned, problem, "auto"), Biased(learned, problem, (0.5,)))
        )
    assert by_rule is not None
    assert torch.equal(by_rule, by_rate)
    assert own is not None
    assert torch.equal(own, untouched)
    assert torch.allclose(on_top, own - 0.5 * apart(problem, inst).clamp_min(FLOOR).log())


def test_without_a_rate_policies_are_themselves() -> None:
    """No rate, no wrapper; and a rate of nothing is no rate."""
    problem, policy, _ = made("tsp")
    assert biased([policy], problem, ())[0] is policy
    for given in (0, 0.0, (0.0, 0.0), ()):
        section = EvaluateSection(distance_bias=given)  # type: ignore[arg-type]
        assert section.distance_bias == ()
        assert section.identity() == EvaluateSection().identity()
    assert "distance_bias" not in AttackSection().identity()
    assert EvaluateSection(distance_bias=0.25).distance_bias == (0.25,)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["evaluate", "attack"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "often", (0.1, -1.0)])
def test_what_is_no_rate_is_refused_by_name(table: str, value: Any) -> None:
    """Negative numbers, NaN and words are refused, and the error names the key."""
    with pytest.raises(RecipeError, match=rf"{table}\.distance_bias"):
        build_section(table, {"distance_bias": value})


def test_commands_take_the_bias(tmp_path: Path) -> None:
    """solve, evaluate and attack take --distance-bias; tables say so; a bad one ends with the key's name and code 2."""
    stops = tmp_path / "stops.csv"
    stops.write_text("x,y\n" + "".join(f"{(7 * i) % 23},{(5 * i) % 19}\n" for i in range(16)))
    store = tmp_path / "s"
    done = cnf("solve", str(stops), "--with", "zoo/tsp20", "--distance-bias", "0.1,0.3", store=store)
    assert done.returncode == 0, done.stderr
    few = ("--set", "evaluate.count=4", "--reference", "nearest", "--with", "zoo/tsp20")
    data = cnf("data", "generate", "tsp", "--n", "12", "--count", "4", store=store)
    assert data.returncode == 0, data.stderr
    told = cnf("evaluate", "--data", data.stdout.strip(), *few, "--distance-bias", "auto", store=store)
    assert told.returncode == 0, told.stderr
    assert "distance bias auto" in told.stdout
    plain = cnf("evaluate", "--data", data.stdout.strip(), *few, store=store)
    assert plain.returncode == 0, plain.stderr
    ids = [
        line.split()[1] for one in (plain, told) for line in one.stderr.splitlines() if line.startswith("evaluation ")
    ]
    both = cnf("compare", *ids, store=store)
    assert both.returncode == 0, both.stderr
    assert "zoo/tsp20 (distance bias auto)" in both.stdout
    assert "zoo/tsp20 " in both.stdout.replace("zoo/tsp20 (distance bias auto)", "")
    hard = ("attack", "tsp", "--n", "8", "--with", "zoo/tsp20", "--count", "2", "--steps", "1")
    ids = [cnf(*hard, *more, store=store) for more in ((), ("--distance-bias", "0.5"))]
    assert all(one.returncode == 0 for one in ids), ids
    assert ids[0].stdout != ids[1].stdout
    for wrong in ("nan", "-1"):
        refused = cnf(*hard, "--distance-bias", wrong, store=store)
        assert refused.returncode == 2
        assert "attack.distance_bias" in refused.stderr
