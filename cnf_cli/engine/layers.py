"""Encoder layers in the native kernels, as one differentiable step from a batch of node embeddings to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cnf_cli.engine.base import Layer

_GROUP_NODES = 800
_GROUPS = (4, 16)
_SPARES = 4
_spare: list[Tensor] = []

LAYER_TENSORS, FF1_BIAS, FF2 = 13, 8, 9
"""How many tensors `Layer.weights` gives, and places among them."""


def through(
    native: Any,
    layers: Sequence[Layer],
    h: Float[Tensor, "b n d"],
    space: Float[Tensor, "b n n"] | None,
    threads: int,
    isa: str,
) -> Tensor | None:
    """The embeddings after all layers; None where the kernels have no place for them."""
    weights = [layer.weights() for layer in layers]
    if not weights or any(w is None for w in weights) or not _fits(native, layers[0], h, weights[0]):
        return None
    flat = [tensor for w in weights for tensor in w or ()]
    fades = [layer.fade for layer in layers]
    known = [fade for fade in fades if fade is not None]
    if space is None or not known:
        far: tuple[Tensor | None, Tensor | None] = None, None
    elif len(known) < len(fades) or space.dtype != torch.float32:
        return None
    else:
        far = space, torch.stack(known)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, *far, *flat))
    how = native, layers[0].heads, threads, isa, keep
    out: Tensor = _Layers.apply(how, h, *far, *flat)  # type: ignore[no-untyped-call]
    return out


def _fits(native: Any, layer: Layer, h: Tensor, weights: Sequence[Tensor] | None) -> bool:
    d = h.shape[-1]
    f = 0 if weights is None else len(weights[FF1_BIAS])
    plain = h.device.type == "cpu" and h.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return bool(plain and d % 16 == 0 and f % 16 == 0 and d % (4 * layer.heads) == 0 and h.shape[1] <= native.MAX_NODES)


class _Layers(torch.autograd.Function):
    """All layers at once; weights' gradients are added up group by group of instances.

    The groups depend on the batch alone, so that a gradient does not depend on the number of threads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[Any, int, int, str, bool],
        h: Tensor,
        space: Tensor | None,
        fade: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        native, heads, threads, isa, keep = how
        x, far = h.detach().contiguous(), _plain(space, fade)
        plain = [w.detach().contiguous() for w in weights]
        b, n, d = x.shape
        group = share(b, n)
        size = native.layers_room(b, n, d, len(weights[FF1_BIAS]), len(weights) // LAYER_TENSORS)
        kept = _Room(size) if keep else None
        out = torch.empty_like(x)
        native.layers(x, plain, heads, group, *far, out, kept and kept.buffer, threads, isa)
        ctx.how = native, heads, group, threads, isa
        ctx.kept = kept
        ctx.save_for_backward(x, space, fade, *weights)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        native, heads, group, threads, isa = ctx.how
        x, space, fade, *weights = ctx.saved_tensors
        plain, far = [w.detach().contiguous() for w in weights], _plain(space, fade)
        d_in = torch.empty_like(x)
        wanted = any(ctx.needs_input_grad[4:])
        sizes = [w.numel() for w in weights]
        groups = -(-len(x) // group)
        room = _Room(groups * sum(sizes)) if wanted else None
        sums = None if room is None else room.buffer[: groups * sum(sizes)].view(groups, -1)
        d_space = None if space is None else torch.zeros(space.shape)
        d_fade = None if fade is None else torch.zeros(groups, *fade.shape)
        native.layers_backward(
            x, plain, heads, group, *far, ctx.kept.buffer, grad.contiguous(), d_in, sums, d_space, d_fade, threads, isa
        )
        grads: list[Tensor | None] = [None] * len(weights)
        if sums is not None:
            for i, part in enumerate(torch.split(sums.sum(0), sizes)):
                shape = weights[i].shape
                # The second feed-forward map's gradient comes transposed.
                grads[i] = part.view(shape[::-1]).t() if i % LAYER_TENSORS == FF2 else part.view(shape)
        return None, d_in, d_space, None if d_fade is None else d_fade.sum(0), *grads


def _plain(*given: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.detach().contiguous() for x in given]


def share(b: int, n: int) -> int:
    """How many instances make a group."""
    low, high = _GROUPS
    return max(1, -(-b // min(max(low, b * n // _GROUP_NODES), high)))


class _Room:
    """A large buffer that goes to the next one who needs it: fresh memory costs as much as a layer."""

    def __init__(self, numel: int) -> None:
        fitting = [i for i, spare in enumerate(_spare) if numel <= spare.numel() <= 2 * numel]
        self.buffer = _spare.pop(fitting[0]) if fitting else torch.empty(numel)

    def __del__(self) -> None:
        _spare.append(self.buffer)
        del _spare[:-_SPARES]
