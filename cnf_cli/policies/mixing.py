"""MatNet's mixed score: for each head a tiny network of attention score and cost, its hidden layer never kept whole.

The hidden layer is 16 times as large as the scores, and a CPU would spend most of a training step moving it through
memory. Here it is made a few instances at a time, small enough for the caches, and made again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_ROOM = 1 << 17
"""Hidden values held at once on a CPU."""


def mixed(
    score: Float[Tensor, "b h n m"],
    cost: Float[Tensor, "b n m"],
    weight1: Float[Tensor, "h 2 x"],
    bias1: Float[Tensor, "h x"],
    weight2: Float[Tensor, "h x"],
    bias2: Float[Tensor, " h"],
    *,
    second_order: bool = False,
) -> Float[Tensor, "b h n m"]:
    """sum_x w2_x relu(w1_0x score + w1_1x cost + b1_x) + b2, per head; differentiable twice with `second_order`."""
    if second_order:
        return plain(score, cost, weight1, bias1, weight2, bias2)
    out: Tensor = _Mixed.apply(score, cost, weight1, bias1, weight2, bias2)  # type: ignore[no-untyped-call]
    return out


def plain(
    score: Tensor, cost: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Float[Tensor, "b h n m"]:
    """The same in one expression, with the hidden layer kept."""
    hidden = torch.relu(
        score[..., None] * weight1[None, :, None, None, 0]
        + cost[:, None, ..., None] * weight1[None, :, None, None, 1]
        + bias1[None, :, None, None]
    )
    return (hidden * weight2[None, :, None, None]).sum(-1) + bias2[None, :, None, None]


class _Mixed(torch.autograd.Function):
    """Instances side by side in the last axis: (heads, instances * n * m), hidden units one axis before it."""

    @staticmethod
    def forward(
        ctx: Any, score: Tensor, cost: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
    ) -> Tensor:
        ctx.save_for_backward(score, cost, weight1, bias1, weight2)
        out = torch.empty_like(score)
        for low, high in _cuts(score, weight2):
            hidden = _hidden(score[low:high], cost[low:high], weight1, bias1)
            # (h, 1, x) @ (c, h, x, nm)
            some = torch.matmul(weight2[:, None], hidden) + bias2[:, None, None]
            out[low:high] = some.view_as(out[low:high])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        score, cost, weight1, bias1, weight2 = ctx.saved_tensors
        want_score, want_cost = ctx.needs_input_grad[:2]
        to_score = torch.empty_like(score) if want_score else None
        to_cost = torch.empty_like(cost) if want_cost else None
        h = len(weight2)
        to1, to_b1, to2 = torch.zeros_like(weight1), torch.zeros_like(bias1), torch.zeros_like(weight2)
        for low, high in _cuts(score, weight2):
            c = high - low
            hidden = _hidden(score[low:high], cost[low:high], weight1, bias1)
            g = grad[low:high].reshape(c, h, 1, -1)
            to2 += torch.matmul(hidden, g.transpose(2, 3)).sum(0)[..., 0]
            # d / d (input of relu), in the hidden layer's own memory
            slope = hidden.sign_().mul_(g).mul_(weight2[None, :, :, None])
            to_b1 += slope.sum((0, 3))
            inputs = torch.stack([score[low:high].reshape(c, h, -1), _flat(cost[low:high], h)], -1)
            to1 += torch.matmul(slope, inputs).sum(0).transpose(1, 2)
            if to_score is not None:
                to_score[low:high] = torch.matmul(weight1[:, :1], slope).view_as(score[low:high])
            if to_cost is not None:
                to_cost[low:high] = torch.matmul(weight1[:, 1:], slope).sum(1).view_as(cost[low:high])
        return to_score, to_cost, to1, to_b1, to2, grad.sum((0, 2, 3))


def _hidden(score: Tensor, cost: Tensor, weight1: Tensor, bias1: Tensor) -> Tensor:
    """(c, h, x, nm)"""
    c, h = score.shape[:2]
    pair = torch.stack([score.reshape(c, h, -1), _flat(cost, h)], 2)
    return torch.matmul(weight1.transpose(1, 2), pair).add_(bias1[:, :, None]).relu_()


def _flat(cost: Tensor, heads: int) -> Tensor:
    return cost.reshape(len(cost), 1, -1).expand(-1, heads, -1)


def _cuts(score: Tensor, weight2: Tensor) -> list[tuple[int, int]]:
    b = len(score)
    if score.device.type != "cpu":
        return [(0, b)]
    size = max(1, _ROOM // max(1, score[:1].numel() * weight2.shape[1]))
    return [(low, min(low + size, b)) for low in range(0, b, size)]
