"""POMO: an attention encoder over the nodes and a light decoder that starts a rollout at every node."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import skip_init

from cnf_cli.engine.base import Engine, Tables
from cnf_cli.errors import RecipeError
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PolicySection

EPSILON = 1e-5


class Params(PolicySection):
    """Keys of `[policy]` for kind = "pomo"; the defaults are the published network."""

    kind: str = Field("pomo", description="policy plugin: `cnf list policies`")
    width: int = Field(128, ge=2, le=4096, description="embedding size d, a multiple of heads")
    layers: int = Field(6, ge=1, le=256, description="encoder layers")
    heads: int = Field(8, ge=1, le=256, description="attention heads, in the encoder and the decoder")
    feed_forward: int = Field(512, ge=1, le=65536, description="hidden size of each layer's feed-forward part")
    norm: Literal["instance", "batch", "layer"] = Field("instance", description="what each layer is normalised over")
    clip: float = Field(10.0, gt=0, le=100, description="logits lie within plus and minus this")


class Policy(nn.Module):
    """Reads instances of `problem`, writes the tables an engine rolls out."""

    def __init__(self, params: Params, problem: BaseProblem) -> None:
        super().__init__()
        if params.width % params.heads:
            raise RecipeError(
                f"policy.width = {params.width} is not a multiple of policy.heads = {params.heads}",
                hint="`cnf list policies pomo` prints every key",
            )
        self.params, self.problem = params, problem
        d = params.width
        self.embed = nn.ModuleDict({group: _linear(f, d) for group, f in problem.feature_groups.items()})
        self.layers = nn.ModuleList(Layer(params) for _ in range(params.layers))
        self.decoder = Decoder(d, problem.query)
        self.init(torch.Generator().manual_seed(0))

    def init(self, rng: torch.Generator) -> Policy:
        """Fresh weights, a function of the generator's state only."""
        joint = self.params.width + ("load" in self.problem.query)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # The last node and the load enter one linear map together, so they share its fan-in.
                fan_in = joint if name in ("decoder.last", "decoder.load") else module.in_features
                for tensor in module.parameters():
                    _fill(tensor, fan_in**-0.5, rng)
            elif isinstance(module, Norm):
                module.reset()
        return self

    def encode(self, inst: Instances, *, second_order: bool = False, engine: Engine | None = None) -> Tables:
        """The decoder's tables, by the engine's way through the layers; torch's own without one.

        With `second_order` their gradients can be differentiated again.
        """
        groups = self.problem.features(inst)
        h = torch.cat([self.embed[name](x) for name, x in groups.items()], 1)
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH) if second_order else nullcontext():
            if second_order or engine is None:
                for layer in self.layers:
                    h = layer(h)
            else:
                h = engine.through([layer for layer in self.layers if isinstance(layer, Layer)], h)
        return self.decoder.tables(h, self.params.heads, self.params.clip)


class Layer(nn.Module):
    """One encoder layer, normalised after each residual sum."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        d = params.width
        self.heads = params.heads
        self.q, self.k, self.v = (_linear(d, d, bias=False) for _ in range(3))
        self.combine = _linear(d, d)
        self.norm1 = Norm(params.norm, d)
        self.ff1, self.ff2 = _linear(d, params.feed_forward), _linear(params.feed_forward, d)
        self.norm2 = Norm(params.norm, d)

    def forward(self, h: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Every node has looked at every other."""
        b, n, d = h.shape
        q, k, v = (w(h).view(b, n, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        h = self.norm1(h + self.combine(seen))
        return self.norm2(h + self.ff2(F.relu(self.ff1(h))))  # type: ignore[no-any-return]

    def weights(self) -> tuple[Tensor, ...] | None:
        """What a native engine needs of the layer, in its order; None where it knows no such norm."""
        if self.norm1.kind != "instance":
            return None
        maps = (self.q.weight, self.k.weight, self.v.weight, self.combine.weight, self.combine.bias)
        first, second = ((norm.weight, norm.bias) for norm in (self.norm1, self.norm2))
        return *maps, *first, self.ff1.weight, self.ff1.bias, self.ff2.weight, self.ff2.bias, *second


class Norm(nn.Module):
    """Normalises over the nodes of each instance, over the whole batch, or over the channels of each node."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, kind: str, d: int) -> None:
        super().__init__()
        self.kind = kind
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        if kind == "batch":
            self.register_buffer("running_mean", torch.zeros(d))
            self.register_buffer("running_var", torch.ones(d))

    def reset(self) -> None:
        """As if nothing had been seen yet."""
        for name, tensor in self.state_dict().items():
            tensor.fill_(1.0 if name in ("weight", "running_var") else 0.0)

    def forward(self, h: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Zero mean, unit variance, then the learned scale and shift."""
        if self.kind == "layer":
            return F.layer_norm(h, h.shape[-1:], self.weight, self.bias, EPSILON)
        if self.kind == "batch":
            flat = h.reshape(-1, h.shape[-1])
            out = F.batch_norm(
                flat, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, EPSILON
            )
            return out.view_as(h)
        # Written on the node axis directly: nn.InstanceNorm1d wants it last and pays for two transposes.
        centred = h - h.mean(1, keepdim=True)
        scale = (centred.square().mean(1, keepdim=True) + EPSILON).rsqrt() * self.weight
        return centred * scale + self.bias


class Decoder(nn.Module):
    """The decoder's weights; its steps are run by an engine."""

    def __init__(self, d: int, query: tuple[str, ...]) -> None:
        super().__init__()
        self.first = _linear(d, d, bias=False) if "first" in query else None
        self.last = _linear(d, d, bias=False)
        self.load = _linear(1, d, bias=False) if "load" in query else None
        self.k, self.v = _linear(d, d, bias=False), _linear(d, d, bias=False)
        self.combine = _linear(d, d)

    def tables(self, h: Float[Tensor, "b n d"], heads: int, clip: float) -> Tables:
        """All that the decoder's steps need of the node embeddings, the output projection folded in."""
        return Tables(
            last=self.last(h),
            key=self.k(h),
            value=self.v(h),
            pointer=h @ self.combine.weight,
            bias=h @ self.combine.bias,
            heads=heads,
            clip=clip,
            first=None if self.first is None else self.first(h),
            load=None if self.load is None else self.load.weight[:, 0],
        )


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    # Not initialised here: the default would draw from torch's global generator.
    layer: nn.Linear = skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    return layer


@torch.no_grad()
def _fill(tensor: Tensor, bound: float, rng: torch.Generator) -> None:
    values = torch.rand(tensor.shape, generator=rng, device=rng.device)
    tensor.copy_((2 * values - 1) * bound)
