"""Device, threads, engine and ranks: how a stage runs, never what it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cnf_cli.engine import get_engine
from cnf_cli.engine.base import Engine, Tables
from cnf_cli.engine.native import instruction_sets
from cnf_cli.errors import RecipeError
from cnf_cli.pipeline import ranks
from cnf_cli.pipeline.provenance import cpu_name
from cnf_cli.problems.instances import Instances
from cnf_cli.recipe.sections import RuntimeSection


@dataclass(frozen=True)
class Setup:
    """Where the work happens."""

    device: torch.device
    engine: Engine
    rank: int = 0
    world: int = 1

    def mine(self, total: int) -> slice:
        """The rows of a batch that this rank works on."""
        if total % self.world:
            raise RecipeError(
                f"a batch of {total} does not divide over {self.world} ranks", hint="--set pretrain.batch_size=..."
            )
        share = total // self.world
        return slice(self.rank * share, (self.rank + 1) * share)

    def average(self, module: nn.Module) -> None:
        """Gradients become their mean over all ranks; nothing to do on one.

        For steps that `network` does not fit: several passes per step, unequal ones, or second derivatives.
        """
        if self.world == 1:
            return
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in grads])
        torch.distributed.all_reduce(flat)
        flat /= self.world
        at = 0
        for grad in grads:
            grad.copy_(flat[at : at + grad.numel()].view_as(grad))
            at += grad.numel()

    def steady(self, policy: nn.Module) -> dict[str, Any]:
        """Torch adds up on one thread where the kernels do nearly all of the work, so that threads change no byte.

        What a result's bytes depend on from here to the end of `set_up`, for its provenance.
        """
        steady = self.engine.name == "native" and bool(policy.in_kernels)
        if steady:
            torch.set_num_threads(1)
        return {
            "processor": cpu_name(),
            "vectors": instruction_sets()[0]
            if self.engine.name == "native"
            else torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
            "threads": "any" if steady else torch.get_num_threads(),
            "ranks": self.world,
        }

    def mean(self, value: float) -> float:
        """The mean of a number over all ranks."""
        if self.world == 1:
            return value
        tensor = torch.tensor([value], device=self.device, dtype=torch.float64)
        torch.distributed.all_reduce(tensor)
        return float(tensor.item()) / self.world

    def agree(self, flag: bool) -> bool:
        """True on all ranks when it is true on any: ranks must stop together."""
        return self.mean(float(flag)) > 0


@contextmanager
def set_up(runtime: RuntimeSection) -> Iterator[Setup]:
    """Device, engine and process group are ready; threads and group are put back afterwards."""
    threads = torch.get_num_threads()
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    device = pick_device(runtime.device)
    ranks.join()
    try:
        engine = get_engine(runtime.engine, device, torch.get_num_threads())
        yield Setup(device, engine, ranks.rank(), ranks.world())
    finally:
        torch.set_num_threads(threads)


def pick_device(wanted: str) -> torch.device:
    """The device a recipe asks for; under torchrun each local rank takes its own GPU."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and "LOCAL_RANK" in os.environ:
        wanted = f"cuda:{os.environ['LOCAL_RANK']}"
    device = torch.device(wanted)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[device.type]:
        raise RecipeError(f"runtime.device: this machine has no {device.type} device", hint="--set runtime.device=cpu")
    return device


class Accelerated:
    """A policy whose encoder runs compiled or in mixed precision; the decoder's tables stay float32."""

    def __init__(self, policy: nn.Module, runtime: RuntimeSection, device: torch.device) -> None:
        self.mixed = torch.bfloat16 if runtime.precision == "bfloat16" else None
        self.device = device.type
        encode: Any = policy.encode
        self.inner: Any = torch.compile(encode) if runtime.compile else encode

    def encode(self, inst: Instances, *, engine: Engine | None = None, **keywords: Any) -> Tables:
        """The policy's tables through torch's own layers: they are what is compiled, whatever the engine."""
        with torch.autocast(self.device, dtype=self.mixed, enabled=self.mixed is not None):
            tables: Tables = self.inner(inst, **keywords)
        return tables.with_(**{name: tensor.float() for name, tensor in tables.tensors()})


class Forward(nn.Module):
    """A policy whose forward is its `encode`: DistributedDataParallel prepares the averaging in forward calls only."""

    def __init__(self, policy: nn.Module, encode: Callable[..., Tables]) -> None:
        super().__init__()
        self.policy, self.run = policy, encode

    def forward(self, inst: Instances, **keywords: Any) -> Tables:
        return self.run(inst, **keywords)


class Parallel:
    """A policy on several ranks: the backward pass of what it encodes leaves the gradients' mean over all ranks.

    One backward pass must follow each `encode` with gradients. The weights stay those of the policy, which is what is
    saved, validated and attacked. Buffers (batch norm's statistics) are rank 0's at the start of every such `encode`.
    """

    def __init__(self, policy: nn.Module, encode: Callable[..., Tables]) -> None:
        self.alone = encode
        # What is compiled lies inside, as torch advises: compiling around the wrapper would trace its hooks.
        self.ranks = DistributedDataParallel(Forward(policy, encode))

    def encode(self, inst: Instances, **keywords: Any) -> Tables:
        # Without gradients there is nothing to average, and one rank alone must not wait for the others' buffers.
        tables: Tables = (self.ranks if torch.is_grad_enabled() else self.alone)(inst, **keywords)
        return tables


def network(policy: Any, runtime: RuntimeSection, setup: Setup) -> Any:
    """The policy as training calls it: faster where the recipe asks for it, gradients averaged where ranks share work.

    On one rank and with plain options that is the policy itself.
    """
    fast = accelerated(policy, runtime, setup.device)
    return Parallel(policy, fast.encode) if setup.world > 1 else fast


def accelerated(policy: Any, runtime: RuntimeSection, device: torch.device) -> Any:
    """The policy itself, or, where the recipe asks for it, a faster way to call it."""
    if runtime.precision == "float32" and not runtime.compile:
        return policy
    if device.type != "cuda":
        # Not only useless elsewhere: bfloat16 products end the process on processors that claim but lack them.
        raise RecipeError(
            f"runtime.precision and runtime.compile are for CUDA, and this runs on {device.type}",
            hint="--set runtime.precision=float32 --set runtime.compile=false",
        )
    return Accelerated(policy, runtime, device)
