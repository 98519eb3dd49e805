"""What both engines share: the decoder's tables, the world a rollout moves in, and the engine's interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.errors import DataError, NoAnswer
from cnf_cli.problems.world import World

__all__ = ["Engine", "Layer", "Mixing", "Tables", "World"]


@dataclass(frozen=True)
class Tables:
    """Everything a POMO-family decoder knows about b instances; made once per instance by `Policy.encode`.

    Step logits of a rollout that started at f, stands at c and has load l left (`.` runs over d, heads split d evenly):
        query      = first[f] + last[c] + l * load
        weight_j,h = softmax_j( query_h . key_j,h / sqrt(d / heads) - fade_h * space[c, j] )   over the allowed nodes
        glimpse_h  = sum_j weight_j,h value_j,h
        logit_j    = clip * tanh( (glimpse . pointer_j + bias_j) / sqrt(d) + near[c, j] )
    The output projection of the attention is already folded into `pointer` and `bias`.
    """

    last: Float[Tensor, "b n d"]
    key: Float[Tensor, "b n d"]
    value: Float[Tensor, "b n d"]
    pointer: Float[Tensor, "b n d"]
    bias: Float[Tensor, "b n"]
    heads: int
    clip: float
    first: Float[Tensor, "b n d"] | None = None
    load: Float[Tensor, " d"] | None = None
    near: Float[Tensor, "b n n"] | None = None
    """What speaks for going from a node to another beside what the network says."""
    space: Float[Tensor, "b n n"] | None = None
    """How far each node lies from each other, for attention that fades; goes with `fade`."""
    fade: Float[Tensor, " h"] | None = None

    nearest: Int[Tensor, "b n n"] | None = None
    """For each node all nodes, the nearest first; goes with `candidates`."""
    candidates: int = 0
    """How many of the nearest nodes that are allowed a move may go to, the depot not counted; 0 = all.

    Where a given tour goes to another node, that one is a candidate too.
    """

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tables of numbers, which may be differentiated, by name."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f.name, value

    def with_(self, **changes: Tensor) -> Tables:
        return replace(self, **changes)  # type: ignore[arg-type]


def not_finite(tables: Tables) -> NoAnswer:
    """The error of a step at which the score of an open node is no finite number, with what probably is the cause."""
    broken = [name for name, x in tables.tensors() if not bool(x.isfinite().all())]
    return NoAnswer(
        "the policy's scores are no finite numbers, so there is no next node to choose",
        at=f"tables of the encoder that hold NaN or infinite numbers: {', '.join(broken)}" if broken else None,
        hint="its weights are far too large or damaged (a training that diverged: lower its learning rate),"
        " or the coordinates are far outside the unit square",
    )


def demand_too_large() -> DataError:
    """The error of an instance no tour can serve."""
    return DataError(
        "a rollout cannot finish: some demand is larger than the vehicle's capacity",
        hint="every customer must fit into one vehicle: split the demand, or give a larger capacity",
    )


@runtime_checkable
class Layer(Protocol):
    """An encoder layer: a function of node embeddings."""

    heads: int

    @property
    def fade(self) -> Tensor | None:
        """How fast each head's attention falls off with distance; None where it does not."""

    def __call__(
        self, h: Float[Tensor, "b n d"], space: Float[Tensor, "b n n"] | None = None, /
    ) -> Float[Tensor, "b n d"]: ...

    def weights(self) -> tuple[Tensor, ...] | None:
        """What the kernels need: query, key, value, combine and its bias, scale and shift of the first norm, both
        feed-forward maps with their biases, scale and shift of the second norm. None where the norm is not over the
        nodes of an instance."""


@dataclass(frozen=True)
class Mixing:
    """How attention scores and costs become one number: for each head a network with one hidden layer of x units.

    With `flipped`, cost[j, i] lies between query i and key j.
    """

    heads: int
    net: tuple[Float[Tensor, "h 2 x"], Float[Tensor, "h x"], Float[Tensor, "h x"], Float[Tensor, " h"]]
    flipped: bool = False


@runtime_checkable
class Engine(Protocol):
    """Rolls a policy out and differentiates the log-probability of tours."""

    name: str

    def through(
        self, layers: Sequence[Layer], h: Float[Tensor, "b n d"], space: Float[Tensor, "b n n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """The node embeddings after all layers, differentiable once; `space` is for layers whose attention fades."""

    def attend(
        self,
        q: Float[Tensor, "b n d"],
        k: Float[Tensor, "b n d"],
        v: Float[Tensor, "b n d"],
        cost: Float[Tensor, "b n n"],
        mixing: Mixing,
    ) -> Float[Tensor, "b n d"] | None:
        """MatNet's attention, differentiable once; None where the engine leaves it to the policy."""

    def rollout(self, tables: Tables, world: World, seeds: Int[Tensor, " b"] | None = None) -> Int[Tensor, "b p t"]:
        """Tours for every start: greedy without seeds, else sampled.

        Draw (i, p, t) depends only on seeds[i], the start node of p and the step t, so that neither threads,
        chunks nor the other rollouts change a result.
        """

    def sample(
        self, tables: Tables, world: World, seeds: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b p t"], Float[Tensor, "b p"]]:
        """(the tours of `rollout`, their log-probabilities)."""

    def score(
        self, tables: Tables, world: World, tours: Int[Tensor, "b p t"], weight: Float[Tensor, "b p"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """(sum_p weight_p log p(tour_p), differentiable with respect to the tables; every log p(tour_p), detached).

        `weight` is a constant: no gradient flows into it. Forced moves (the start, the depot before it, the padding)
        contribute nothing.
        """
