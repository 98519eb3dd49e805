"""The POMO network: sizes, names, initial weights, and its encoder against one written from torch's own layers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import RecipeError
from cnf_cli.policies import pomo
from cnf_cli.problems import cvrp, tsp
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances

TSP, CVRP = tsp.Problem(tsp.Params()), cvrp.Problem(cvrp.Params())
BOTH = pytest.mark.parametrize("problem", [TSP, CVRP], ids=["tsp", "cvrp"])
SMALL = pomo.Params(width=16, layers=2, heads=4, feed_forward=32)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(policy: pomo.Policy) -> int:
    return sum(p.numel() for p in policy.parameters())


def test_parameter_counts() -> None:
    """The published sizes: 1,269,760 (TSP), 1,254,016 (CVRP), 3,644,416 (TSP, 18 layers)."""
    assert count(pomo.Policy(pomo.Params(), TSP)) == 1_269_760
    assert count(pomo.Policy(pomo.Params(), CVRP)) == 1_254_016
    assert count(pomo.Policy(pomo.Params(layers=18), TSP)) == 3_644_416


@BOTH
def test_parameter_names(problem: BaseProblem) -> None:
    """The names a checkpoint is read and written by."""
    layer = ["q.weight", "k.weight", "v.weight"] + [
        f"{part}.{kind}" for part in ("combine", "norm1", "ff1", "ff2", "norm2") for kind in ("weight", "bias")
    ]
    want = {f"embed.{group}.{kind}" for group in problem.feature_groups for kind in ("weight", "bias")}
    want |= {f"layers.{i}.{name}" for i in range(2) for name in layer}
    want |= {f"decoder.{q}.weight" for q in (*problem.query, "k", "v", "combine")} | {"decoder.combine.bias"}
    assert set(pomo.Policy(SMALL, problem).state_dict()) == want


@BOTH
def test_initial_weights_follow_the_generator(problem: BaseProblem) -> None:
    """Equal generators give equal weights, other seeds others, and torch's global generator is left alone."""
    before = torch.get_rng_state()
    one, two, other = (pomo.Policy(SMALL, problem).init(rng(s)).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["decoder.k.weight"], other["decoder.k.weight"])


def test_initial_weights_are_uniform_by_fan_in() -> None:
    """Weights and biases fill U(+-1/sqrt(fan_in)); the last node and the load share the fan-in d + 1."""
    state = pomo.Policy(pomo.Params(), CVRP).init(rng()).state_dict()
    fans = {"embed.node.weight": 3, "embed.node.bias": 3, "layers.0.ff2.weight": 512, "layers.1.ff1.bias": 128}
    fans |= {"decoder.k.weight": 128, "decoder.last.weight": 129, "decoder.load.weight": 129}
    for name, fan in fans.items():
        assert float(state[name].abs().max()) * math.sqrt(fan) == pytest.approx(1, abs=0.05), name
        assert float(state[name].abs().max()) * math.sqrt(fan) <= 1
    assert float(state["decoder.last.weight"].std()) * math.sqrt(129 * 3) == pytest.approx(1, abs=0.02)
    assert (state["layers.0.norm1.weight"] == 1).all()


def naive_encoder(policy: pomo.Policy, inst: Instances) -> Tensor:
    """Node embeddings from torch's own attention, norm and linear functions, head by head."""
    w = {k: v.detach() for k, v in policy.state_dict().items()}
    groups = policy.problem.features(inst)
    h = torch.cat([x @ w[f"embed.{g}.weight"].T + w[f"embed.{g}.bias"] for g, x in groups.items()], 1)
    width = h.shape[-1] // policy.params.heads

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = w[name + ".weight"], w[name + ".bias"]
        if policy.params.norm == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias)
        if policy.params.norm == "batch":
            return F.batch_norm(x.flatten(0, 1), None, None, weight, bias, training=True).view_as(x)
        return F.instance_norm(x.transpose(1, 2), weight=weight, bias=bias).transpose(1, 2)

    for i in range(policy.params.layers):
        name = f"layers.{i}"
        q, k, v = (h @ w[f"{name}.{part}.weight"].T for part in "qkv")
        heads = []
        for cut in (slice(a * width, (a + 1) * width) for a in range(policy.params.heads)):
            score = q[..., cut] @ k[..., cut].transpose(1, 2) / math.sqrt(width)
            heads.append(score.softmax(-1) @ v[..., cut])
        h = norm(h + torch.cat(heads, -1) @ w[f"{name}.combine.weight"].T + w[f"{name}.combine.bias"], f"{name}.norm1")
        hidden = F.relu(h @ w[f"{name}.ff1.weight"].T + w[f"{name}.ff1.bias"])
        h = norm(h + hidden @ w[f"{name}.ff2.weight"].T + w[f"{name}.ff2.bias"], f"{name}.norm2")
    return h


@BOTH
@pytest.mark.parametrize("norm", ["instance", "batch", "layer"])
def test_tables_equal_the_naive_network(problem: BaseProblem, norm: str) -> None:
    """Encoder and folded decoder tables equal the textbook network with the same weights, for every norm."""
    params = SMALL.model_copy(update={"norm": norm})
    policy = pomo.Policy(params, problem).init(rng(3)).double()
    for name, p in policy.named_parameters():
        if "norm" in name:
            p.data += 0.3 * torch.randn(p.shape, generator=rng(4), dtype=torch.float64)
    inst = problem.sample(3, rng=rng(), n=6)
    inst = Instances(**{k: None if v is None else v.double() for k, v in vars(inst).items()})
    h, w, t = naive_encoder(policy, inst), policy.state_dict(), policy.encode(inst)
    assert torch.allclose(t.last, h @ w["decoder.last.weight"].T)
    assert torch.allclose(t.key, h @ w["decoder.k.weight"].T)
    assert torch.allclose(t.value, h @ w["decoder.v.weight"].T)
    glimpse = torch.randn(16, generator=rng(), dtype=torch.float64)
    want = h @ (w["decoder.combine.weight"] @ glimpse + w["decoder.combine.bias"])
    assert torch.allclose(t.pointer @ glimpse + t.bias, want)
    assert (t.first is None) == ("first" not in problem.query)
    assert t.first is None or torch.allclose(t.first, h @ w["decoder.first.weight"].T)
    assert (t.load is None) == ("load" not in problem.query)


def test_batch_norm_keeps_running_statistics() -> None:
    """In training the batch counts and is remembered; in evaluation an instance does not depend on its company."""
    policy = pomo.Policy(SMALL.model_copy(update={"norm": "batch"}), TSP).init(rng())
    inst = TSP.sample(8, rng=rng(), n=10)
    before = policy.state_dict()["layers.0.norm1.running_mean"].clone()
    policy.train().encode(inst)
    assert not torch.equal(policy.state_dict()["layers.0.norm1.running_mean"], before)
    policy.eval()
    assert torch.allclose(policy.encode(inst).key[:2], policy.encode(inst[:2]).key, atol=1e-6)
    policy.init(rng())
    assert torch.equal(policy.state_dict()["layers.0.norm1.running_mean"], before)


@BOTH
def test_nodes_may_be_renamed(problem: BaseProblem) -> None:
    """Reordering the customers reorders the tables and changes nothing else."""
    policy = pomo.Policy(SMALL, problem).init(rng()).double()
    inst = problem.sample(2, rng=rng(), n=7)
    order = torch.arange(inst.nodes)
    order[problem.depots :] = torch.randperm(7, generator=rng(1)) + problem.depots
    moved = {k: v.double()[:, order] for k, v in vars(inst).items() if v is not None and v.ndim > 1}
    plain = Instances(**{k: vars(inst)[k].double() for k in moved})
    assert torch.allclose(policy.encode(Instances(**moved)).pointer, policy.encode(plain).pointer[:, order])


def test_second_derivatives_reach_the_input() -> None:
    """With second_order the norm of an input gradient can be differentiated with respect to the weights."""
    policy = pomo.Policy(SMALL, TSP).init(rng())
    inst = TSP.sample(2, rng=rng(), n=5)
    inst = inst.with_(xy=inst.xy.requires_grad_())  # type: ignore[union-attr]
    world, engine = TSP.world(inst), TorchEngine()
    tables = policy.encode(inst, second_order=True)
    log_prob = engine.log_prob(tables, world, engine.rollout(tables, world, torch.arange(2)))
    (slope,) = torch.autograd.grad(log_prob.sum(), inst.xy, create_graph=True)  # type: ignore[arg-type]
    slope.square().sum().backward()
    grad = policy.layers[0].q.weight.grad
    assert grad is not None
    assert torch.isfinite(grad).all()
    assert grad.norm() > 0


@pytest.mark.parametrize("norm", ["instance", "batch", "layer"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_degenerate_maps_stay_finite(norm: str, n: int) -> None:
    """Tables and gradients are finite when all nodes are equal, however small the instance (promise 16)."""
    policy = pomo.Policy(SMALL.model_copy(update={"norm": norm}), TSP).init(rng())
    inst = Instances(torch.full((2, n, 2), 0.5, requires_grad=True))
    world, engine = TSP.world(inst), TorchEngine()
    tables = policy.encode(inst)
    tours = engine.rollout(tables, world, torch.arange(2))
    value, _ = engine.score(tables, world, tours, torch.ones(2, n))
    value.sum().backward()
    assert inst.xy is not None
    assert inst.xy.grad is not None
    assert torch.isfinite(inst.xy.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_width_must_fit_the_heads() -> None:
    """A width that heads do not divide is a recipe error that names both keys."""
    with pytest.raises(RecipeError, match=r"policy\.heads"):
        pomo.Policy(pomo.Params(width=20, heads=8), TSP)
