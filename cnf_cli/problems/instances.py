"""A batch of routing instances as tensors: what policies read, attacks move and engines roll out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Instances:
    """b instances with n nodes each; a field is None where the problem has no such attribute.

    With a depot, node 0 is the depot and n counts it.
    """

    xy: Float[Tensor, "b n 2"] | None = None
    demand: Float[Tensor, "b n"] | None = None
    """Share of the vehicle's capacity, float64 where the capacity is too large for float32; 0 at the depot."""
    capacity: Float[Tensor, " b"] | None = None
    """Capacity in units, so that units of demand = demand * capacity."""
    matrix: Float[Tensor, "b n n"] | None = None
    """matrix[i, j] is the cost of going from i to j; zero diagonal."""
    seed: Int[Tensor, " b"] | None = None
    """What a policy with random inputs (MatNet's one-hot vectors) draws them from; says nothing about the instance."""

    @property
    def _first(self) -> Tensor:
        return self.xy if self.xy is not None else self.matrix  # type: ignore[return-value]

    def __len__(self) -> int:
        return self._first.shape[0]

    @property
    def nodes(self) -> int:
        return self._first.shape[1]

    @property
    def device(self) -> torch.device:
        return self._first.device

    def _map(self, change) -> Instances:  # type: ignore[no-untyped-def]
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Instances(**{k: None if v is None else change(v) for k, v in values.items()})

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> Instances:
        return self._map(lambda t: t[index])

    def to(self, device: torch.device | str) -> Instances:
        return self._map(lambda t: t.to(device))

    def detach(self) -> Instances:
        return self._map(lambda t: t.detach())

    def repeat_interleave(self, times: int) -> Instances:
        """Each instance `times` times in a row."""
        return self._map(lambda t: t.repeat_interleave(times, dim=0))

    def with_(self, **changes: Tensor | None) -> Instances:
        return replace(self, **changes)


def concatenate(parts: Sequence[Instances]) -> Instances:
    """All instances of `parts`, in order."""
    first = parts[0]
    together = {
        f.name: None if getattr(first, f.name) is None else torch.cat([getattr(p, f.name) for p in parts])
        for f in fields(first)
    }
    return Instances(**together)
