"""POMO: an attention encoder over the nodes and a light decoder that starts a rollout at every node."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import skip_init

from cnf_cli.engine.base import Engine, Tables
from cnf_cli.errors import RecipeError
from cnf_cli.policies.distance import Learned, apart, crowd, space
from cnf_cli.problems.base import BaseProblem
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import PolicySection

EPSILON = 1e-5
NEAR, FADE = 1.0, 1.0
"""Where the learned biases begin: the pointer's, and each head's of an attention."""


class Params(PolicySection):
    """Keys of `[policy]` for kind = "pomo"; the defaults are the published network."""

    added: ClassVar[tuple[str, ...]] = ("pointer_bias", "glimpse_bias", "encoder_bias", "candidates")
    kind: str = Field("pomo", description="policy plugin: `cnf list policies`")
    width: int = Field(128, ge=2, le=4096, description="embedding size d, a multiple of heads")
    layers: int = Field(6, ge=1, le=256, description="encoder layers")
    heads: int = Field(8, ge=1, le=256, description="attention heads, in the encoder and the decoder")
    feed_forward: int = Field(512, ge=1, le=65536, description="hidden size of each layer's feed-forward part")
    norm: Literal["instance", "batch", "layer"] = Field("instance", description="what each layer is normalised over")
    clip: float = Field(10.0, gt=0, le=100, description="logits lie within plus and minus this")
    pointer_bias: bool = Field(False, description="near nodes are preferred, by a learned multiple of -ln distance")
    glimpse_bias: bool = Field(False, description="the decoder's attention falls off with distance, learned by head")
    encoder_bias: bool = Field(False, description="every layer's attention falls off with distance, learned by head")
    candidates: int = Field(0, ge=0, le=10**6, description="the decoder sees the nearest so many open nodes; 0 = all")

    @property
    def sees_distances(self) -> bool:
        """True when some part of the network reads distances."""
        return self.pointer_bias or self.glimpse_bias or self.encoder_bias or self.candidates > 0


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
        self.decoder.add_biases(params)
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
            elif isinstance(module, Norm | Learned):
                module.reset()
        return self

    @property
    def in_kernels(self) -> bool:
        """True when an engine's kernels have all of its layers: what is left to torch is little."""
        return all(isinstance(layer, Layer) and layer.weights() is not None for layer in self.layers)

    def encode(self, inst: Instances, *, second_order: bool = False, engine: Engine | None = None) -> Tables:
        """The decoder's tables, by the engine's way through the layers; torch's own without one.

        With `second_order` their gradients can be differentiated again.
        """
        groups = self.problem.features(inst)
        h = torch.cat([self.embed[name](x) for name, x in groups.items()], 1)
        far = apart(self.problem, inst) if self.params.sees_distances else None
        between = space(far) if far is not None and self.params.encoder_bias else None
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH) if second_order else nullcontext():
            if second_order or engine is None:
                for layer in self.layers:
                    h = layer(h, between)
            else:
                h = engine.through([layer for layer in self.layers if isinstance(layer, Layer)], h, between)
        tables = self.decoder.tables(h, self.params.heads, self.params.clip, far)
        few = self.params.candidates
        if far is None or not 0 < few < inst.nodes - 1:
            return tables
        return replace(tables, nearest=far.detach().argsort(dim=-1, stable=True), candidates=few)


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
        self.bias = Learned(params.heads, FADE) if params.encoder_bias else None

    @property
    def fade(self) -> Tensor | None:
        """How fast each head's attention falls off with distance; None where it does not."""
        return None if self.bias is None else self.bias.weight

    def forward(self, h: Float[Tensor, "b n d"], space: Float[Tensor, "b n n"] | None = None) -> Float[Tensor, "b n d"]:
        """Every node has looked at every other, the less the farther it lies where a layer knows of distances."""
        b, n, d = h.shape
        q, k, v = (w(h).view(b, n, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        mask = None if self.fade is None or space is None else -self.fade[:, None, None] * space[:, None]
        seen = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(b, n, d)
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
        self.near: Learned | None = None
        self.fade: Learned | None = None

    def add_biases(self, params: Params) -> None:
        """The biases by distance that the recipe asks for."""
        self.near = Learned(1, NEAR) if params.pointer_bias else None
        self.fade = Learned(params.heads, FADE) if params.glimpse_bias else None

    def tables(
        self, h: Float[Tensor, "b n d"], heads: int, clip: float, far: Float[Tensor, "b n n"] | None = None
    ) -> Tables:
        """All that the decoder's steps need of the node embeddings and, for biases, of the distances in map widths.

        The output projection is folded in.
        """
        near = None if self.near is None or far is None else self.near.weight * crowd(far)
        fades = self.fade is not None and far is not None
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
            near=near,
            space=space(far) if fades and far is not None else None,
            fade=self.fade.weight if fades and self.fade is not None else None,
        )


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    # Not initialised here: the default would draw from torch's global generator.
    layer: nn.Linear = skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    return layer


@torch.no_grad()
def _fill(tensor: Tensor, bound: float, rng: torch.Generator) -> None:
    values = torch.rand(tensor.shape, generator=rng, device=rng.device)
    tensor.copy_((2 * values - 1) * bound)
