"""Random numbers by counting: a draw is a hash of (seed, start node, step), so order and threads never change it.

Bit for bit, on unsigned 64-bit integers (`*` and `+` wrap, `>>` shifts zeros in):

    GOLDEN = 0x9E3779B97F4A7C15
    mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
             z = (z ^ (z >> 27)) * 0x94D049BB133111EB
             return z ^ (z >> 31)
    fold(x, k)              = mix(x + (k + 1) * GOLDEN)
    stream(seed, start)     = fold(fold(seed, 0), start)
    uniform(seed, start, t) = float32(fold(stream(seed, start), t) >> 40) * 2^-24

A seed is the 64 bits of its int64 value. `t` is the position in the tour of the node that is drawn: a TSP tour's first
draw is t = 1 (t = 0 is the start), a CVRP tour's is t = 2 (0 is the depot, 1 the start).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(z: Int[Tensor, "..."], by: int) -> Int[Tensor, "..."]:
    # int64 has only the arithmetic shift: clear the copies of the sign bit it brings in.
    return (z >> by) & ((1 << (64 - by)) - 1)


def mix(z: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Every bit of the result depends on every bit of z (the finaliser of splitmix64)."""
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def fold(x: Int[Tensor, "..."], k: int | Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A new seed for item k of x: different k give unrelated seeds."""
    count = torch.as_tensor(k, dtype=torch.int64, device=x.device) + 1
    return mix(x.long() + count * _GOLDEN)


def streams(seed: Int[Tensor, " b"], start: Int[Tensor, " p"]) -> Int[Tensor, "b p"]:
    """One stream of draws per instance and start node."""
    return fold(fold(seed, 0)[:, None], start.long()[None, :])


def draw(stream: Int[Tensor, "b p"], step: int) -> Float[Tensor, "b p"]:
    """Each stream's uniform float32 number in [0, 1) for this step."""
    return _shift(fold(stream, step), 40).to(torch.float32) * 2.0**-24


def uniform(seed: Int[Tensor, " b"], start: Int[Tensor, " p"], step: int) -> Float[Tensor, "b p"]:
    """Uniform float32 numbers in [0, 1), each a function of its own seed, start node and step only."""
    return draw(streams(seed, start), step)


def pick(
    probability: Float[Tensor, "b p n"], allowed: Bool[Tensor, "b p n"], u: Float[Tensor, "b p"]
) -> Int[Tensor, "b p"]:
    """The first allowed node j, in index order, with cumsum(probability)_j > u * total; else the last allowed node."""
    cumulative = probability.cumsum(-1)
    reached = (cumulative > u.to(cumulative.dtype)[..., None] * cumulative[..., -1:]) & allowed
    index = torch.arange(probability.shape[-1], device=probability.device)
    last = torch.where(allowed, index, -1).amax(-1)
    return torch.where(reached.any(-1), reached.int().argmax(-1), last)


def seeds_from(rng: torch.Generator, count: int) -> Int[Tensor, " b"]:
    """`count` rollout seeds drawn from an explicit generator."""
    return torch.randint(0, 2**63 - 1, (count,), generator=rng, device=rng.device)
