"""What an interrupted run goes on from: sealed, so that one flipped bit is never taken for it, and kept twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cnf_cli.errors import ArtifactError
from cnf_cli.formats import checkpoint
from cnf_cli.pipeline import ranks
from cnf_cli.regular_files import write_atomic

if TYPE_CHECKING:
    from cnf_cli.training.machine import Setup

NEXT, NOW, BEFORE = "state-next.safetensors", "state.safetensors", "state-before.safetensors"
DIARY = ("metrics.jsonl", "times.jsonl")
_FIELDS = {"kind", "progress"}


@dataclass
class Progress:
    """Where a run stands; everything else follows from it, since every step's randomness follows from its number."""

    step: int = 0
    instances: int = 0
    seconds: float = 0.0
    """By the wall clock, without validation."""
    cpu_seconds: float = 0.0
    """Of all threads, and of the solvers asked on the way: what a busy machine spoils least."""
    sums: dict[str, float] = field(default_factory=dict)
    """Each number's sum over the updates since the last line of metrics.jsonl, for its mean."""
    updates: int = 0
    """How many updates those are."""

    def add(self, numbers: Mapping[str, float]) -> None:
        """One more update's numbers."""
        self.updates += 1
        for name, value in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self, setup: Setup) -> dict[str, float]:
        """The numbers' means since the last time, over all ranks."""
        out = {name: setup.mean(total / self.updates) for name, total in sorted(self.sums.items())}
        self.sums, self.updates = {}, 0
        return out


Found = tuple[dict[str, Tensor], dict[str, Any]]


def save_sealed(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """The file holds the tensors and `meta`, and `load_sealed` notices any change to it."""
    checkpoint.save(path, tensors, {**meta, "seal": _digest(tensors, meta)})


def load_sealed(path: Path, fields: set[str]) -> Found:
    """What was saved, whose `meta` has these fields; one that says so without a seal is from an older version."""
    tensors, meta = checkpoint.load(path)
    seal = meta.pop("seal", None)
    meta.pop("format")
    # A flipped bit in the name of the seal makes another field of it: that is not a file without one.
    if set(meta) != fields or (seal is not None and seal != _digest(tensors, meta)):
        raise ArtifactError(f"{path.name} is not as it was written", at=str(path))
    return tensors, meta


def sealed_part(path: Path) -> dict[str, Tensor] | None:
    """A part of a result that an interrupted run has kept; None where there is none, or where it is damaged."""
    try:
        return load_sealed(path, {"kind"})[0] if path.exists() else None
    except ArtifactError:
        return None


def _digest(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    out = hashlib.sha256(json.dumps(meta, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        out.update(f"{name} {array.dtype} {array.shape}".encode())
        out.update(array.tobytes())
    return out.hexdigest()


def set_aside(path: Path) -> None:
    """The file has another name, for whoever wants to look at it; it is not read again."""
    path.replace(path.with_name(f"{path.name}.damaged"))


def fill(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Each module has the tensors whose names begin with its own."""
    for name, module in modules.items():
        prefix = f"{name}/"
        module.load_state_dict({k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)})


def save_state(work: Path, at: Progress, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
    """The work folder holds all that is needed to go on from here, bit for bit, and from the state before it."""
    tensors: dict[str, Tensor] = {}
    for name, module in modules.items():
        tensors |= {f"{name}/{key}": value for key, value in module.state_dict().items()}
    for name, optimizer in optimizers.items():
        for i, entry in optimizer.state_dict()["state"].items():
            tensors |= {f"{name}.optimizer/{i}/{key}": v for key, v in entry.items() if isinstance(v, Tensor)}
    diary = {name: (work / name).read_bytes() for name in DIARY if (work / name).exists()}
    tensors |= {f"diary/{name}": _packed(data) for name, data in diary.items()}
    sizes = {name: len(data) for name, data in diary.items()}
    save_sealed(work / NEXT, tensors, {"kind": "state", "progress": asdict(at), "diary": sizes})
    if (work / NOW).exists():
        (work / NOW).replace(work / BEFORE)
    (work / NEXT).replace(work / NOW)


def load_state(
    work: Path, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer], say: Callable[[str], None]
) -> Progress:
    """Modules, optimizers and what was written down are as in the newest sound state; without one nothing changes.

    A damaged state is set aside with a word. Rank 0 chooses, for all.
    """
    name, found = _newest(work, say) if ranks.rank() == 0 else ("", None)
    name = ranks.share(name)
    if not name:
        return Progress()
    tensors, meta = found or _read(work / name)
    fill(modules, tensors)
    for key, optimizer in optimizers.items():
        whole = optimizer.state_dict()
        whole["state"] = _entries(f"{key}.optimizer/", tensors)
        optimizer.load_state_dict(whole)
    if ranks.rank() == 0:
        for file, size in meta.get("diary", {}).items():
            write_atomic(work / file, _unpacked(tensors[f"diary/{file}"], size))
    return Progress(**meta["progress"])


def _newest(work: Path, say: Callable[[str], None]) -> tuple[str, Found | None]:
    damaged = False
    for name in (NEXT, NOW, BEFORE):
        if not (work / name).exists():
            continue
        try:
            found = _read(work / name)
        except ArtifactError as error:
            damaged = True
            set_aside(work / name)
            say(f"the saved state {name} is damaged ({error.message}) and was set aside")
            continue
        if damaged:
            say(f"going on from the state before it, after {found[1]['progress']['instances']:,} instances")
        return name, found
    if damaged:
        say("no other state was kept: starting again from the beginning")
    return "", None


def _read(path: Path) -> Found:
    try:
        return load_sealed(path, _FIELDS | {"diary"})
    except ArtifactError as error:
        try:
            found = load_sealed(path, _FIELDS)  # as versions before wrote it
        except ArtifactError:
            raise error from None
    if any(name.startswith("diary/") for name in found[0]):
        raise ArtifactError(f"{path.name} is not as it was written", at=str(path))
    return found


def _entries(prefix: str, tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """An optimizer's state, by parameter."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            i, entry = key[len(prefix) :].split("/")
            state.setdefault(int(i), {})[entry] = value
    return state


def _packed(data: bytes) -> Tensor:
    """Bytes as whole numbers, which is what a checkpoint holds."""
    return torch.from_numpy(np.frombuffer(data + bytes(-len(data) % 8), "<i8").astype(np.int64))


def _unpacked(tensor: Tensor, size: int) -> bytes:
    return tensor.numpy().astype("<i8").tobytes()[:size]
