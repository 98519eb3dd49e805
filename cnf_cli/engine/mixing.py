"""MatNet's mixed-score attention in the native kernels, as one differentiable step."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cnf_cli.engine.base import Mixing
from cnf_cli.engine.layers import share


def attend(
    native: Any,
    q: Float[Tensor, "b n d"],
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n d"],
    cost: Float[Tensor, "b n n"],
    mixing: Mixing,
    threads: int,
    isa: str,
) -> Tensor | None:
    """What every query sees of the values; None where the kernels have no place for it."""
    plain = q.device.type == "cpu" and q.dtype == cost.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    hidden = mixing.net[1].shape[-1]
    if not plain or q.shape[-1] % (4 * mixing.heads) or hidden != native.HIDDEN or q.shape[1] > native.MAX_NODES:
        return None
    how = native, mixing.heads, mixing.flipped, threads, isa
    out: Tensor = _Attend.apply(how, q, k, v, cost, *mixing.net)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    """Weights' gradients are added up group by group of instances; the groups depend on the batch alone."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, int, bool, int, str], *given: Tensor) -> Tensor:
        native, heads, flipped, threads, isa = how
        q, k, v, cost, *net = (x.detach().contiguous() for x in given)
        group = share(*q.shape[:2])
        out = torch.empty_like(q)
        native.mixed(q, k, v, cost, flipped, net, heads, group, out, None, [], None, threads, isa)
        ctx.how = *how, group
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        native, heads, flipped, threads, isa, group = ctx.how
        q, k, v, cost, *net = (x.detach().contiguous() for x in ctx.saved_tensors)
        wants_cost = ctx.needs_input_grad[4]
        grads = [torch.empty_like(x) for x in (q, k, v, *([cost] if wants_cost else []))]
        sums = torch.zeros(-(-len(q) // group), heads * native.MIXING_WEIGHTS)
        native.mixed(
            q, k, v, cost, flipped, net, heads, group, None, grad.contiguous(), grads, sums, threads, isa
        )  # fmt: skip
        x = native.HIDDEN
        both, bias1, weight2, bias2 = torch.split(sums.sum(0).view(heads, -1), [2 * x, x, x, 1], dim=1)
        d_cost = grads[3] if wants_cost else None
        return None, *grads[:3], d_cost, both.reshape(heads, 2, x), bias1, weight2, bias2[:, 0]
