"""Several processes on one job (`torchrun -m cnf_cli ...`): rank 0 writes, the others compute along and wait."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TypeVar

from cnf_cli.errors import CnfError

T = TypeVar("T")
_UNSET = "`unset {}`, or start with torchrun, which sets RANK and WORLD_SIZE"


def rank() -> int:
    """This process's number among its equals; 0 without torchrun."""
    found = _number("RANK", 0)
    if found >= world():
        raise CnfError(f"RANK is {found} of {world()} processes", hint=_UNSET.format("RANK"))
    return found


def world() -> int:
    """How many processes work together; 1 without torchrun."""
    return _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not re.fullmatch("[0-9]{1,6}", text):
        raise CnfError(f"{name} is {text[:40]!r}, not the number that torchrun sets", hint=_UNSET.format(name))
    return int(text)


def join() -> None:
    """The processes know each other; nothing to do alone or the second time."""
    import torch
    import torch.distributed as dist

    if world() > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # Solvers and validation run on rank 0 alone and may take long: the others wait for a day before they give up.
        dist.init_process_group(backend, timeout=timedelta(days=1))


def wait() -> None:
    """Every rank has come here."""
    if world() > 1:
        import torch.distributed as dist

        join()
        dist.barrier()


def share(value: T) -> T:
    """Rank 0's value, on every rank."""
    if world() == 1:
        return value
    import torch.distributed as dist

    join()
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def leave() -> None:
    """The group is closed, so that no process hangs at its end."""
    if world() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
