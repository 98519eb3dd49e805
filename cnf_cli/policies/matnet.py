"""MatNet: rows and columns of a cost matrix attend to each other; the decoder is POMO's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from cnf_cli.engine.base import Engine, Mixing, Tables
from cnf_cli.engine.random import fold, mix
from cnf_cli.errors import DataError, RecipeError
from cnf_cli.policies.mixing import mixed
from cnf_cli.policies.pomo import EPSILON, Decoder, _fill, _linear
from cnf_cli.problems.atsp import with_seed
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PolicySection

MIX = 16
"""Hidden units of the small network that mixes attention and cost, for each head."""


class Params(PolicySection):
    """Keys of `[policy]` for kind = "matnet"; the defaults are the published network."""

    kind: str = Field("matnet", description="policy plugin: `cnf list policies`")
    width: int = Field(256, ge=2, le=4096, description="embedding size d, a multiple of heads")
    layers: int = Field(5, ge=1, le=256, description="encoder layers")
    heads: int = Field(16, ge=1, le=256, description="attention heads, in the encoder and the decoder")
    feed_forward: int = Field(512, ge=1, le=65536, description="hidden size of each layer's feed-forward part")
    one_hot_seeds: int = Field(
        0, ge=0, le=4096, description="different first embeddings of nodes: at least n, at most width; 0 = problem.n"
    )
    clip: float = Field(10.0, gt=0, le=100, description="logits lie within plus and minus this")


class Policy(nn.Module):
    """Reads matrices of costs, writes the tables an engine rolls out."""

    def __init__(self, params: Params, problem: BaseProblem) -> None:
        super().__init__()
        look = "`cnf list policies matnet` prints every key"
        if params.width % params.heads:
            raise RecipeError(
                f"policy.width = {params.width} is not a multiple of policy.heads = {params.heads}", hint=look
            )
        if "matrix" not in problem.movable:
            raise RecipeError(
                f"matnet reads a matrix of costs, and {problem.kind} has coordinates", hint="--set policy.kind=pomo"
            )
        self.params, self.problem = params, problem
        self.one_hot_seeds: int = params.one_hot_seeds or problem.params.n  # type: ignore[attr-defined]
        """How many different first embeddings a node may get."""
        if self.one_hot_seeds > params.width:
            raise RecipeError(
                f"{self.one_hot_seeds} one-hot seeds (policy.one_hot_seeds, or problem.n) need a policy.width of at"
                f" least as much, not {params.width}",
                hint=f"{look}; the published width of 256 reaches n = 256",
            )
        self.layers = nn.ModuleList(Layer(params) for _ in range(params.layers))
        self.decoder = Decoder(params.width, problem.query)
        self.init(torch.Generator().manual_seed(0))

    @property
    def in_kernels(self) -> bool:
        """Its linear maps are torch's, and too much of its work to be done on one thread."""
        return False

    def init(self, rng: torch.Generator) -> Policy:
        """Fresh weights, a function of the generator's state only."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                for tensor in module.parameters():
                    _fill(tensor, module.in_features**-0.5, rng)
            elif isinstance(module, Block):
                module.init(rng)
            elif isinstance(module, Norm):
                module.reset()
        return self

    def encode(self, inst: Instances, *, second_order: bool = False, engine: Engine | None = None) -> Tables:
        """The decoder's tables: queries from the rows, keys, values and pointers from the columns.

        With `second_order` the layers' gradients can be differentiated again.
        """
        matrix, inst = self.problem.distances(inst), with_seed(inst)
        assert inst.seed is not None
        self._check(inst.nodes)
        column = one_hot(inst.seed, inst.nodes, self.one_hot_seeds, self.params.width).to(matrix.dtype)
        row = torch.zeros_like(column)
        for layer in self.layers:
            row, column = layer(row, column, matrix, second_order, engine)
        tables = self.decoder.tables(column, self.params.heads, self.params.clip)
        assert self.decoder.first is not None
        return tables.with_(last=self.decoder.last(row), first=self.decoder.first(row))

    def _check(self, nodes: int) -> None:
        if nodes > self.one_hot_seeds:
            raise DataError(
                f"an instance of {nodes} nodes needs {nodes} one-hot seeds, and this policy has {self.one_hot_seeds}",
                hint=f"train one with --set policy.one_hot_seeds={nodes}"
                f" and policy.width at least that (a multiple of policy.heads); they cannot be added afterwards",
            )


def one_hot(seed: Int[Tensor, " b"], nodes: int, seeds: int, width: int) -> Float[Tensor, "b n d"]:
    """A different unit vector for each node of an instance, drawn without replacement from the first `seeds` ones.

    The draw depends on the instance's own seed only, so neither its batch nor the chunk size changes it.
    """
    key = fold(mix(seed)[:, None], torch.arange(seeds, device=seed.device)[None, :])
    chosen = key.argsort(1)[:, :nodes]
    return F.one_hot(chosen, width).float()


class Layer(nn.Module):
    """Rows look at columns and columns at rows, both as they were before."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.row, self.column = Block(params), Block(params)

    def forward(
        self,
        row: Float[Tensor, "b n d"],
        column: Float[Tensor, "b n d"],
        cost: Float[Tensor, "b n n"],
        second_order: bool = False,
        engine: Engine | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b n d"]]:
        """(rows, columns), each having seen all of the other."""
        engine = None if second_order else engine
        return (
            self.row(row, column, cost, False, second_order, engine),
            self.column(column, row, cost, True, second_order, engine),
        )


class Block(nn.Module):
    """One side of a layer: attention whose scores mix q.k with the cost, then feed-forward; normalised after each."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        d, h = params.width, params.heads
        self.heads = h
        self.q, self.k, self.v = (_linear(d, d, bias=False) for _ in range(3))
        self.mix1_weight, self.mix1_bias = nn.Parameter(torch.empty(h, 2, MIX)), nn.Parameter(torch.empty(h, MIX))
        self.mix2_weight, self.mix2_bias = nn.Parameter(torch.empty(h, MIX)), nn.Parameter(torch.empty(h))
        self.combine = _linear(d, d)
        self.norm1 = Norm(d)
        self.ff1, self.ff2 = _linear(d, params.feed_forward), _linear(params.feed_forward, d)
        self.norm2 = Norm(d)

    def init(self, rng: torch.Generator) -> None:
        """Fresh mixing weights."""
        for tensor in (self.mix1_weight, self.mix1_bias):
            _fill(tensor, 2**-0.5, rng)
        for tensor in (self.mix2_weight, self.mix2_bias):
            _fill(tensor, MIX**-0.5, rng)

    def forward(
        self,
        own: Float[Tensor, "b n d"],
        other: Float[Tensor, "b n d"],
        cost: Float[Tensor, "b n n"],
        flipped: bool = False,
        second_order: bool = False,
        engine: Engine | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Every node of `own` has looked at every node of `other`; cost[i, j] lies between own i and other j.

        With `flipped` it is cost[j, i].
        """
        q, k, v = self.q(own), self.k(other), self.v(other)
        mixing = Mixing(self.heads, (self.mix1_weight, self.mix1_bias, self.mix2_weight, self.mix2_bias), flipped)
        seen = engine.attend(q, k, v, cost, mixing) if engine else None
        if seen is None:
            seen = attend(q, k, v, cost, mixing, second_order=second_order)
        h = self.norm1(own + self.combine(seen))
        return self.norm2(h + self.ff2(F.relu(self.ff1(h))))  # type: ignore[no-any-return]


def attend(
    q: Float[Tensor, "b n d"],
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n d"],
    cost: Float[Tensor, "b n n"],
    mixing: Mixing,
    *,
    second_order: bool = False,
) -> Float[Tensor, "b n d"]:
    """What every query sees of the values: softmax of the mixed scores, for each head."""
    b, n, d = q.shape
    q, k, v = (x.view(b, n, mixing.heads, -1).transpose(1, 2) for x in (q, k, v))
    score = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    cost = cost.transpose(1, 2) if mixing.flipped else cost
    weight = mixed(score, cost, *mixing.net, second_order=second_order).softmax(-1)
    return (weight @ v).transpose(1, 2).reshape(b, n, d)


class Norm(nn.Module):
    """Normalises over the nodes of each instance, channel by channel; training and evaluation are the same."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def reset(self) -> None:
        """Scale 1, shift 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Zero mean, unit variance, then the learned scale and shift; can be differentiated twice."""
        centred = h - h.mean(1, keepdim=True)
        return centred * ((centred.square().mean(1, keepdim=True) + EPSILON).rsqrt() * self.weight) + self.bias
