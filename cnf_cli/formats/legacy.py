"""Torch checkpoints of POMO and MatNet, converted to our parameter names. The only file that calls `torch.load`."""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Array
from cnf_cli.formats.files import read_bytes
from cnf_cli.formats.legacy_names import HINT, Mapped, mapped, router_names

if TYPE_CHECKING:
    from torch import Tensor

MAX_CHECKPOINT = 1 << 30
MAX_MODELS = 64
ROUTER = "routing_model_state_dict"
# Published files whose content has been looked at; any other is imported with a warning.
KNOWN = {
    "2e1d6de4f0c08deab1585bf1cd6e09581e90d426964e375bf3045fad4ec8c758": "AMDKD CVRP100",
    "32339b1e7cf198f817a3870ba8f84ed1eb482b44367d91424c437ecf8282388c": "AMDKD CVRP20",
    "ba35c36dc08bf2d7350b63b42908d6a71491dbba5fd558786b4694747a131e03": "AMDKD CVRP50",
    "3f9d6f0527e6eee9fd1e3b753c4c467a2d9896233c2b57bd2c9d95dd22fbef6b": "AMDKD TSP100",
    "2a1b05e0c4e214b0087a3fdfe9e932374d392df0a9772bf299b148395dff5ffd": "AMDKD TSP20",
    "39a65c0ecc7400258f444a9bf65d1ae5ab10f24563168e7ac23db596381e89f4": "AMDKD TSP50",
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One or more policies of equal architecture, under our parameter names."""

    problem: str
    models: tuple[dict[str, Tensor], ...]
    policy: dict[str, str | int]
    """The recipe's `[policy]` section for these weights."""
    left_out: tuple[str, ...]
    """What the file holds besides the policies and their router."""
    sha256: str
    known: str = ""
    """The published file this is, '' if its digest is not in the table."""
    router: dict[str, Tensor] | None = None
    """The weights of the router they were trained with, under our names."""
    told: tuple[str, ...] = ()
    """What the user had to say about the network, because no weight does."""


@dataclass(frozen=True)
class Untold:
    """What weights do not tell about a network, and a user may; None where nothing was said."""

    heads: int | None = None
    norm: str | None = None
    one_hot_seeds: int | None = None


def load_checkpoint(path: Path, said: Untold = Untold()) -> Checkpoint:  # noqa: B008 - it is frozen
    """The policies in a .pt file, and their router; a file that is no POMO or MatNet is refused with the reason.

    What the weights leave open (`Untold`) is asked for where no published file answers it.
    """
    data = read_bytes(path, MAX_CHECKPOINT)
    _check_zip(data, path)
    content = _torch_load(data, str(path))
    states, left_out = _states(content, str(path))
    first = mapped(states[0], str(path))
    models = tuple(mapped(state, str(path)).renamed(first.shapes()) for state in states)
    digest = hashlib.sha256(data).hexdigest()
    known = KNOWN.get(digest, "")
    router = _router(content, first.problem, len(models), str(path))
    policy, told = _policy(first, said, router, known)
    left_out = [name for name in left_out if name != ROUTER or router is None]
    return Checkpoint(
        problem=first.problem,
        models=models,
        policy=policy,
        left_out=tuple(sorted({*left_out, *first.left_out})),
        sha256=digest,
        known=known,
        router=router,
        told=told,
    )


def _router(content: Any, problem: str, models: int, at: str) -> dict[str, Tensor] | None:
    state = content.get(ROUTER) if isinstance(content, Mapping) else None
    return router_names(dict(state), problem, models, at) if state and _is_state(state) else None


def _policy(
    first: Mapped, said: Untold, router: dict[str, Tensor] | None, known: str
) -> tuple[dict[str, str | int], tuple[str, ...]]:
    """(the `[policy]` section, what of it the user said)."""
    told = []
    heads = first.heads or _heads(first.width, said.heads, first.at)
    if said.heads not in (None, heads):
        raise DataError(f"this network has {heads} heads, not {said.heads}", at=first.at, hint="leave out `--heads`")
    policy: dict[str, str | int] = {"kind": first.kind, "width": first.width, "layers": first.layers}
    policy |= {"heads": heads, "feed_forward": first.feed_forward}
    if first.kind == "pomo":
        policy["norm"] = _norm(first, said.norm, known)
        if said.norm:
            told.append(f"its norm is {said.norm}")
    elif said.norm not in (None, "instance"):
        raise DataError(f"{first.kind} has instance norm only, not {said.norm}", at=first.at, hint="leave out `--norm`")
    if first.kind == "matnet":
        policy["one_hot_seeds"] = _one_hot_seeds(first, said.one_hot_seeds, router)
        if said.one_hot_seeds:
            told.append(f"it was trained with {said.one_hot_seeds} one-hot seeds")
    return policy, tuple(told)


def _norm(first: Mapped, said: str | None, known: str) -> str:
    """Which norm it is: statistics are batch norm's; without them instance, layer and batch norm look alike."""
    if first.statistics:
        if said not in (None, "batch"):
            raise DataError(
                f"it keeps running statistics, which {said} norm does not", at=first.at, hint="--norm batch"
            )
        return "batch"
    if said in first.norms:
        return said
    if said is not None:
        raise DataError(
            f"{said} norm without running statistics is none of ours",
            at=first.at,
            hint="batch norm is imported with its statistics (track_running_stats = True)",
        )
    if known:
        return "instance"
    raise DataError(
        "a checkpoint does not tell instance norm from layer norm, nor from batch norm without statistics",
        at=first.at,
        hint="say it: `--norm instance` (upstream's and CNF's default) or `--norm layer`",
    )


def _one_hot_seeds(first: Mapped, said: int | None, router: dict[str, Tensor] | None) -> int:
    """How many one-hot seeds it was trained with; the published router reads n*n costs, and n seeds are the default."""
    flat = 0 if router is None else router["embed.flat.weight"].shape[1]
    seeds = said or math.isqrt(flat)
    if not 1 <= seeds <= first.width:
        raise DataError(
            "a checkpoint does not tell with how many one-hot seeds it was trained"
            if not seeds
            else f"{seeds} one-hot seeds do not fit into a width of {first.width}",
            at=first.at,
            hint="say it: `--one-hot-seeds 20` for instances of 20 nodes (`one_hot_seed_cnt` in its recipe)",
        )
    return seeds


def storage(data: bytes) -> Array:
    """The numbers of a torch storage that a pickle carries as bytes."""
    import torch

    value = _torch_load(data, "a tensor inside the pickle")
    kinds = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
    if not isinstance(value, torch.storage.TypedStorage) or value.dtype not in kinds:
        raise DataError("the pickle carries a torch object that is no plain storage of numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated, but it is what the public files hold
        flat = torch.empty(0, dtype=value.dtype).set_(value)
    array: Array = flat.numpy()
    return array


class _Float64:
    """Stands for `numpy.dtype` while a checkpoint is read: that of a float64 in this machine's order and no other."""

    def __init__(self, kind: str, align: bool = False, copy: bool = True) -> None:
        if kind != "f8":
            raise ValueError(f"Unsupported global numpy.dtype({kind!r}): of numpy's numbers only float64 is read")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state != (3, "<", None, None, None, -1, -1, 0):
            raise ValueError("Unsupported global numpy.dtype: this float64 is none of numpy's own")


def _float64(kind: _Float64, data: bytes) -> float:
    """The number in a pickled numpy.float64."""
    if type(kind) is not _Float64 or type(data) is not bytes or len(data) != 8:
        raise ValueError("Unsupported global numpy scalar: only float64 is read")
    return float(struct.unpack("<d", data)[0])


# Trainers log the numbers that numpy gave them: numpy's own name for such a scalar, before and since its version 2.
_SCALARS: list[Any] = [
    (_Float64, "numpy.dtype"),
    (_float64, "numpy.core.multiarray.scalar"),
    (_float64, "numpy._core.multiarray.scalar"),
]


def _torch_load(data: bytes, at: str) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.serialization.safe_globals(_SCALARS):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds on a damaged or hostile file
        text = str(error)
        found = re.search(r"(?:Unsupported global|Unsupported class|GLOBAL) (\S+)", text)
        if "eights only" in text or "nsupported" in text:
            what = f"it holds more than tensors{f' ({found[1][:80]})' if found else ''}"
        else:
            what = (text.splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"this torch file is refused: {what}", at=at, hint=HINT) from None


def _check_zip(data: bytes, path: Path) -> None:
    if not data.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, OSError):
        raise DataError(f"{path.name} is truncated", at=str(path), hint="download it again") from None
    if total > len(data):  # torch stores its tensors uncompressed
        raise DataError(f"{path.name} declares {total} bytes and has {len(data)}", at=str(path), hint=HINT)


def _states(content: Any, at: str) -> tuple[list[dict[str, Tensor]], list[str]]:
    """The state dicts of all models in the file, and the names of what else it holds."""
    left_out: list[str] = []
    if isinstance(content, Mapping) and "model_state_dict" in content:
        left_out = [str(key) for key in content if key != "model_state_dict"]
        content = content["model_state_dict"]
    states = list(content) if isinstance(content, list | tuple) else [content]
    if not 1 <= len(states) <= MAX_MODELS or not all(_is_state(state) for state in states):
        raise DataError("this file holds no state dict of a model", at=at, hint=HINT)
    return [{str(k).removeprefix("module."): v for k, v in state.items()} for state in states], left_out


def _is_state(value: Any) -> bool:
    import torch

    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())


def _heads(width: int, heads: int | None, at: str) -> int:
    if heads is None and width not in (64, 128):
        raise DataError(
            f"a checkpoint does not tell its number of heads, and its width {width} is not a published one",
            at=at,
            hint="say it: `--heads 8`",
        )
    found = heads or 8
    if width % found:
        raise DataError(f"width {width} is not a multiple of {found} heads", at=at, hint="say the right `--heads`")
    return found
