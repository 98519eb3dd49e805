"""The CPU engine: the torch engine's numbers from C++ kernels, several times faster and without an n-step graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cnf_cli.engine.base import Layer, Mixing, Tables, World, demand_too_large, not_finite
from cnf_cli.engine.layers import through
from cnf_cli.engine.mixing import attend
from cnf_cli.engine.torch import TorchEngine
from cnf_cli.errors import MissingDependency

_native: Any
try:
    _native = import_module("cnf_cli.engine._native")
except ImportError as error:  # built without a compiler, or for another Python
    _native = None
    _reason = str(error)
else:
    _reason = ""


def available() -> bool:
    """True when the extension was built and loads here."""
    return _native is not None


def why_not() -> str:
    """Why the extension cannot be loaded; empty when it can."""
    return _reason


def instruction_sets() -> list[str]:
    """The kernels this build and this processor both have, fastest first."""
    return [] if _native is None else list(_native.instruction_sets())


class NativeEngine:
    """Implements `Engine` for float32 tables on the CPU.

    Greedy takes the best un-squashed score, as the torch engine does; ties go to the lowest node. Results do not depend
    on the number of threads. Tables the kernels have no room for (over 16 heads, over 32000 nodes) go through torch.
    """

    name = "native"

    def __init__(self, threads: int | None = None, instruction_set: str = "") -> None:
        """Uses `threads` threads, or as many as torch does at each call; "" is the fastest instruction set."""
        if _native is None:
            raise MissingDependency(
                "the native engine is not built here",
                at=_reason,
                hint='install a C++ compiler and reinstall, or set runtime.engine = "torch"',
            )
        if instruction_set and instruction_set not in instruction_sets():
            raise ValueError(f"no kernels for {instruction_set!r} here; there are {instruction_sets()}")
        self.threads = threads
        self.instruction_set = instruction_set

    def through(
        self, layers: Sequence[Layer], h: Float[Tensor, "b n d"], space: Float[Tensor, "b n n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """All layers in one call; through torch where the kernels have none for them (other norms, odd widths)."""
        out = through(_native, layers, h, space, self._threads(), self.instruction_set)
        return TorchEngine().through(layers, h, space) if out is None else out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cost: Tensor, mixing: Mixing) -> Tensor | None:
        """MatNet's attention in one call; None for widths and types the kernels do not have."""
        return attend(_native, q, k, v, cost, mixing, self._threads(), self.instruction_set)

    def rollout(self, tables: Tables, world: World, seeds: Int[Tensor, " b"] | None = None) -> Int[Tensor, "b p t"]:
        """Tours for every start: greedy without seeds, else sampled by `engine.random`."""
        if not _fits(tables):
            return TorchEngine().rollout(tables, world, seeds)
        return self._roll(tables, world, seeds, None)

    def sample(
        self, tables: Tables, world: World, seeds: Int[Tensor, " b"]
    ) -> tuple[Int[Tensor, "b p t"], Float[Tensor, "b p"]]:
        """(sampled tours, their log-probabilities as they were when drawn)."""
        if not _fits(tables):
            return TorchEngine().sample(tables, world, seeds)
        log_prob = torch.empty(len(tables.key), len(world.starts))
        return self._roll(tables, world, seeds, log_prob), log_prob.to(tables.key.device)

    @torch.no_grad()
    def _roll(self, tables: Tables, world: World, seeds: Tensor | None, log_prob: Tensor | None) -> Tensor:
        b, n, _ = tables.key.shape
        p = len(world.starts)
        room = n if world.demand is None else 2 * n + 1
        moves = torch.empty(b, p, room, dtype=torch.int16)
        length = torch.zeros(b, p, dtype=torch.int32)
        with _named(tables):
            _native.rollout(
                _arrays(tables, world),
                tables.heads,
                tables.clip,
                None if seeds is None else seeds.to("cpu", torch.int64).contiguous(),
                moves,
                length,
                log_prob,
                self._threads(),
                self.instruction_set,
            )
        longest = room if world.demand is None else int(length.max()) if length.numel() else 2
        return moves[:, :, :longest].to(tables.key.device, torch.int64)

    def score(
        self, tables: Tables, world: World, tours: Int[Tensor, "b p t"], weight: Float[Tensor, "b p"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """(sum_p weight_p log p(tour_p), differentiable once with respect to the tables; every log p, detached).

        The gradient is taken in the same pass as the value, when any table wants one.
        """
        if not _fits(tables):
            return TorchEngine().score(tables, world, tours, weight)
        named = dict(tables.tensors())
        weight = weight.detach()
        if torch.is_grad_enabled() and any(t.requires_grad for t in named.values()):
            values: tuple[Tensor, Tensor] = _Score.apply(  # type: ignore[no-untyped-call]
                self, tables, world, tours, weight, tuple(named), *named.values()
            )
            return values
        with torch.no_grad():
            total, log_prob, _ = self._score(tables, world, tours, weight, wanted=False)
        return total, log_prob

    def _score(
        self, tables: Tables, world: World, tours: Tensor, weight: Tensor, *, wanted: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        total, log_prob = torch.zeros(len(weight)), torch.zeros(weight.shape)
        grads = _room(tables, world) if wanted else {}
        with _named(tables):
            _native.score(
                _arrays(tables, world),
                tables.heads,
                tables.clip,
                tours.to("cpu", torch.int64).contiguous(),
                _plain(weight),
                total,
                log_prob,
                list(grads.values()),
                self._threads(),
                self.instruction_set,
            )
        device, dtype = tables.key.device, weight.dtype
        return total.to(device, dtype), log_prob.to(device, dtype), grads

    def _threads(self) -> int:
        return torch.get_num_threads() if self.threads is None else self.threads


class _Score(torch.autograd.Function):
    """The weighted log-probability whose gradient was already taken when it was computed."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: NativeEngine,
        tables: Tables,
        world: World,
        tours: Tensor,
        weight: Tensor,
        names: tuple[str, ...],
        *values: Tensor,
    ) -> tuple[Tensor, Tensor]:
        total, log_prob, grads = engine._score(tables, world, tours, weight, wanted=True)
        ctx.kinds = [(v.shape, v.dtype, v.device) for v in values]
        ctx.save_for_backward(*(grads[name] for name in names))
        ctx.mark_non_differentiable(log_prob)
        return total, log_prob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _unused: Tensor) -> tuple[Tensor | None, ...]:
        scale = _plain(grad)
        out: list[Tensor | None] = [None] * 6
        for kept, (shape, dtype, device), need in zip(
            ctx.saved_tensors, ctx.kinds, ctx.needs_input_grad[6:], strict=True
        ):
            if not need:
                out.append(None)
                continue
            if not kept.numel():  # a load vector without demands has no part in the score
                out.append(torch.zeros(shape, dtype=dtype, device=device))
                continue
            scaled = kept * scale.reshape(-1, *[1] * (kept.ndim - 1))
            out.append((scaled.sum(0) if len(shape) == 1 else scaled).to(device, dtype))
        return tuple(out)


@contextmanager
def _named(tables: Tables) -> Iterator[None]:
    """What a kernel found wrong with the numbers, as the errors of the torch engine."""
    try:
        yield
    except _native.CannotFinish:
        raise demand_too_large() from None
    except _native.NotFinite:
        raise not_finite(tables) from None


def _fits(tables: Tables) -> bool:
    nodes = tables.key.shape[1]
    return bool(tables.heads <= _native.MAX_HEADS and nodes <= _native.MAX_NODES)


def _plain(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float32).contiguous()


def _arrays(tables: Tables, world: World) -> Any:
    plain = {name: _plain(x) for name, x in tables.tensors()}
    loads = None if world.demand is None else world.loads()
    return _native.Tables(
        plain["last"],
        plain["key"],
        plain["value"],
        plain["pointer"],
        plain["bias"],
        plain.get("first"),
        plain.get("load"),
        None if world.demand is None else _plain(world.demand),
        None if loads is None else loads.demand.cpu().contiguous(),
        None if loads is None else loads.limit.cpu().contiguous(),
        world.starts.to("cpu", torch.int64).contiguous(),
        plain.get("near"),
        plain.get("space"),
        plain.get("fade"),
        None if tables.nearest is None else tables.nearest.to("cpu", torch.int16).contiguous(),
        tables.candidates,
    )


def _room(tables: Tables, world: World) -> dict[str, Tensor]:
    """Where the kernels put the gradients, in their order; empty for a table that has no part in the score."""
    b, n, d = tables.key.shape
    shape: dict[str, tuple[int, ...]] = dict.fromkeys(("last", "key", "value", "pointer"), (b, n, d))
    shape |= {"bias": (b, n), "first": (b, n, d) if tables.first is not None else (0,)}
    shape["load"] = (b, d) if tables.load is not None and world.demand is not None else (0,)
    shape["near"] = (b, n, n) if tables.near is not None else (0,)
    shape["space"] = (b, n, n) if tables.space is not None else (0,)
    shape["fade"] = (b, tables.heads) if tables.fade is not None else (0,)
    return {name: torch.zeros(size) for name, size in shape.items()}
