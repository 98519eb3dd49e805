"""MatNet: the published size, its one-hot seeds, its gradients, and both engines on its tables."""

from __future__ import annotations

import math

import pytest
import torch

from cnf_cli.engine import get_engine
from cnf_cli.engine.native import available
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import DataError, RecipeError
from cnf_cli.policies import matnet
from cnf_cli.policies.mixing import mixed, plain
from cnf_cli.policies.run import reinforce_loss, rollout, solve
from cnf_cli.problems import atsp, tsp
from cnf_cli.problems.instances import Instances

SMALL = {"width": 16, "layers": 2, "heads": 4, "feed_forward": 32}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(n: int = 8) -> atsp.Problem:
    return atsp.Problem(atsp.Params(n=n))


def policy(n: int = 8, seed: int = 0, **keys: int) -> matnet.Policy:
    return matnet.Policy(matnet.Params(**{**SMALL, **keys}), problem(n)).init(rng(seed))


def step_by_step(model: matnet.Policy, inst: Instances) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, columns) after the encoder, written out from its description, one head and one pair at a time."""
    matrix, p = inst.matrix[0], model.params  # type: ignore[index]
    n = len(matrix)
    assert inst.seed is not None
    column = matnet.one_hot(inst.seed[:1], n, model.one_hot_seeds, p.width)[0]
    row = torch.zeros(n, p.width)

    def norm(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        mean, var = x.mean(0), x.var(0, unbiased=False)
        return (x - mean) / (var + 1e-5).sqrt() * layer.weight + layer.bias  # type: ignore[operator, no-any-return]

    def side(block: matnet.Block, own: torch.Tensor, other: torch.Tensor, cost: torch.Tensor) -> torch.Tensor:
        q, k, v = own @ block.q.weight.T, other @ block.k.weight.T, other @ block.v.weight.T
        size = p.width // p.heads
        seen = torch.zeros(n, p.width)
        for h in range(p.heads):
            at = slice(h * size, (h + 1) * size)
            score = torch.zeros(n, n)
            for i in range(n):
                for j in range(n):
                    pair = torch.stack([q[i, at] @ k[j, at] / math.sqrt(size), cost[i, j]])
                    hidden = torch.relu(pair @ block.mix1_weight[h] + block.mix1_bias[h])
                    score[i, j] = hidden @ block.mix2_weight[h] + block.mix2_bias[h]
            seen[:, at] = score.softmax(1) @ v[:, at]
        h1 = norm(own + block.combine(seen), block.norm1)
        return norm(h1 + block.ff2(torch.relu(block.ff1(h1))), block.norm2)

    for layer in model.layers:
        assert isinstance(layer, matnet.Layer)
        row, column = side(layer.row, row, column, matrix), side(layer.column, column, row, matrix.T)
    return row, column


def test_published_size() -> None:
    """5,601,696 parameters at the defaults, whatever n."""
    for n in (20, 100):
        model = matnet.Policy(matnet.Params(), problem(n))
        assert sum(p.numel() for p in model.parameters()) == 5_601_696


@torch.no_grad()
def test_encoder_is_what_its_description_says() -> None:
    """Batched, fused and chunked, the encoder gives the numbers of plain loops; queries are rows, keys columns."""
    model, inst = policy(5), problem(5).sample(1, rng=rng(1))
    row, column = step_by_step(model, inst)
    tables, decoder = model.encode(inst), model.decoder
    assert decoder.first is not None
    torch.testing.assert_close(tables.last[0], decoder.last(row), rtol=1e-4, atol=1e-5)
    assert tables.first is not None
    torch.testing.assert_close(tables.first[0], decoder.first(row), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tables.key[0], decoder.k(column), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tables.value[0], decoder.v(column), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tables.pointer[0], column @ decoder.combine.weight, rtol=1e-4, atol=1e-5)


def test_one_hots_are_distinct_and_vary() -> None:
    """Each node gets its own unit vector among the first `seeds`, every one of those is used, seeds differ."""
    vectors = matnet.one_hot(torch.arange(200), 5, 7, 16)
    assert (vectors.sum(-1) == 1).all()
    assert (vectors.sum(1) <= 1).all()
    assert (vectors[..., 7:] == 0).all()
    share = vectors.mean((0, 1))[:7] * 7
    assert ((share > 0.7) & (share < 1.3)).all()
    neighbours = problem().augment(problem().sample(1, rng=rng()), 3).seed
    assert neighbours is not None
    a, b, _ = matnet.one_hot(neighbours, 8, 8, 8).argmax(-1).tolist()
    assert a != b
    assert a[1:] != b[:-1]


def test_encoding_does_not_depend_on_the_batch() -> None:
    """An instance has the same tables alone and among others; without a seed it gets the one of its costs."""
    model, inst = policy(), problem().sample(3, rng=rng())
    together, alone = model.encode(inst), model.encode(inst[1:2])
    torch.testing.assert_close(together.key[1], alone.key[0], rtol=1e-4, atol=1e-5)
    bare = model.encode(Instances(matrix=inst.matrix))
    assert torch.equal(bare.key, together.key)


def test_copies_see_the_instance_differently_and_repeatably() -> None:
    """x16 finds tours at least as good as x1 and better ones on some instances; chunks change nothing."""
    model, inst = policy(), problem().sample(12, rng=rng())
    x16 = solve([model], problem(), inst, TorchEngine(), augment=16)
    chunked = solve([model], problem(), inst, TorchEngine(), augment=16, chunk=5)
    assert (x16.cost <= x16.cost_plain).all()
    assert (x16.cost < x16.cost_plain - 1e-6).any()
    assert torch.equal(x16.tour, chunked.tour)
    assert torch.equal(x16.tour_plain, solve([model], problem(), inst, TorchEngine(), augment=1).tour)


@pytest.mark.skipif(not available(), reason="the native engine is not built here")
@pytest.mark.parametrize("keys", [{}, {"width": 64, "heads": 8}, {"width": 256, "heads": 16, "layers": 1}])
def test_both_engines_give_the_same_tours(keys: dict[str, int]) -> None:
    """Greedy and sampled tours are equal, gradients agree, at the published width and at small ones."""
    model, task = policy(20, **{"width": 32, **keys}), problem(20)
    inst, native, plain_engine = task.sample(6, rng=rng(2)), get_engine("native"), TorchEngine()
    for seeds in (None, torch.arange(6)):
        ours = rollout(model, task, inst, native, seeds=seeds)[0]
        theirs = rollout(model, task, inst, plain_engine, seeds=seeds)[0]
        assert (ours == theirs).all(-1).float().mean() > 0.99  # a tie within rounding may fall either way
    tours = rollout(model, task, inst, plain_engine, seeds=torch.arange(6))[0]
    weight = torch.randn(tours.shape[:2], generator=rng(3))
    found = []
    for engine in (native, plain_engine):
        model.zero_grad()
        total, _ = engine.score(model.encode(inst, engine=engine), task.world(inst), tours, weight)
        torch.autograd.backward(total.sum())
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (found[0] - found[1]).norm() < 1e-3 * found[1].norm()


def test_mixing_has_the_gradients_of_the_plain_expression() -> None:
    """Values and all gradients equal those of one plain expression, also cut into pieces."""
    shapes = [(70, 4, 6, 6), (70, 6, 6), (4, 2, 16), (4, 16), (4, 16), (4,)]
    inputs = [torch.randn(s, generator=rng(i), dtype=torch.float64).requires_grad_() for i, s in enumerate(shapes)]
    weight = torch.randn(shapes[0], generator=rng(9), dtype=torch.float64)
    ours, theirs = mixed(*inputs), plain(*inputs)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_second_derivatives_exist() -> None:
    """With `second_order` the gradient with respect to the costs can be differentiated with respect to the weights."""
    model, inst = policy(5), problem(5).sample(2, rng=rng())
    assert inst.matrix is not None
    leaf = inst.matrix.clone().requires_grad_()
    tables = model.encode(inst.with_(matrix=leaf), second_order=True)
    (grad,) = torch.autograd.grad(tables.key.square().sum(), leaf, create_graph=True)
    second = torch.autograd.grad(grad.square().sum(), list(model.parameters()), allow_unused=True)
    assert any(g is not None and g.abs().max() > 0 for g in second)


def test_too_few_seeds_is_a_clear_error() -> None:
    """More nodes than one-hot seeds, more seeds than the width, and problems without a matrix are told apart."""
    with pytest.raises(DataError, match="9 nodes needs 9 one-hot seeds"):
        policy(8).encode(problem(9).sample(1, rng=rng()))
    policy(8).encode(problem(5).sample(1, rng=rng()))
    with pytest.raises(RecipeError, match="300 one-hot seeds"):
        matnet.Policy(matnet.Params(), problem(300))
    with pytest.raises(RecipeError, match="multiple"):
        policy(8, width=18)
    with pytest.raises(RecipeError, match="coordinates"):
        matnet.Policy(matnet.Params(**SMALL), tsp.Problem(tsp.Params(n=5)))


def test_weights_follow_the_generator() -> None:
    """The same generator gives the same weights, another others, within the published bounds."""
    one, two, other = policy(seed=1), policy(seed=1), policy(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.decoder.k.weight, other.decoder.k.weight)
    block = one.layers[0].row
    assert isinstance(block, matnet.Block)
    assert 0.5 < float(block.mix1_weight.abs().max().detach()) <= 2**-0.5
    assert 0.15 < float(block.mix2_weight.abs().max().detach()) <= 0.25


def test_it_learns() -> None:
    """A minute network beats its untrained self after forty steps."""
    task = problem(6)
    model = policy(6, width=32, layers=1)
    held_out = task.sample(100, rng=rng(5))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    before = float(rollout(model, task, held_out, TorchEngine(), starts=1)[1].mean())
    for step in range(40):
        batch = task.sample(32, rng=rng(100 + step))
        loss, _ = reinforce_loss(model, task, batch, TorchEngine(), torch.arange(32) + 1000 * step)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    after = float(rollout(model, task, held_out, TorchEngine(), starts=1)[1].mean())
    assert after < 0.9 * before
