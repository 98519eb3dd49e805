"""Torch checkpoints of the POMO family, converted to our parameter names. The only file that calls `torch.load`."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Array
from cnf_cli.formats.files import read_bytes

if TYPE_CHECKING:
    from torch import Tensor

MAX_CHECKPOINT = 1 << 30
MAX_LAYERS = 256
MAX_MODELS = 64
# Published files whose content has been looked at; any other is imported with a warning.
KNOWN = {
    "2e1d6de4f0c08deab1585bf1cd6e09581e90d426964e375bf3045fad4ec8c758": "AMDKD CVRP100",
    "32339b1e7cf198f817a3870ba8f84ed1eb482b44367d91424c437ecf8282388c": "AMDKD CVRP20",
    "ba35c36dc08bf2d7350b63b42908d6a71491dbba5fd558786b4694747a131e03": "AMDKD CVRP50",
    "3f9d6f0527e6eee9fd1e3b753c4c467a2d9896233c2b57bd2c9d95dd22fbef6b": "AMDKD TSP100",
    "2a1b05e0c4e214b0087a3fdfe9e932374d392df0a9772bf299b148395dff5ffd": "AMDKD TSP20",
    "39a65c0ecc7400258f444a9bf65d1ae5ab10f24563168e7ac23db596381e89f4": "AMDKD TSP50",
}
_LAYER = {
    "Wq": "q",
    "Wk": "k",
    "Wv": "v",
    "multi_head_combine": "combine",
    "addAndNormalization1.norm": "norm1",
    "addAndNormalization2.norm": "norm2",
    "add_n_normalization_1.norm": "norm1",
    "add_n_normalization_2.norm": "norm2",
    "addAndNormalization1.norm_by_EMB": "norm1",
    "addAndNormalization2.norm_by_EMB": "norm2",
    "add_n_normalization_1.norm_by_EMB": "norm1",
    "add_n_normalization_2.norm_by_EMB": "norm2",
    "feedForward.W1": "ff1",
    "feedForward.W2": "ff2",
    "feed_forward.W1": "ff1",
    "feed_forward.W2": "ff2",
}
_REST = {
    "encoder.embedding": "embed.node",
    "encoder.embedding_depot": "embed.depot",
    "encoder.embedding_node": "embed.node",
    "decoder.Wq_first": "decoder.first",
    "decoder.Wq_last": "decoder.last",
    "decoder.Wk": "decoder.k",
    "decoder.Wv": "decoder.v",
    "decoder.multi_head_combine": "decoder.combine",
}
_LAYER_NAME = re.compile(r"encoder\.layers\.(\d{1,3})\.(.+)")
_HINT = "supported: POMO for TSP and CVRP (upstream, AMDKD, CNF), saved with torch.save"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One or more policies of equal architecture, under our parameter names."""

    problem: str
    models: tuple[dict[str, Tensor], ...]
    width: int
    layers: int
    heads: int
    feed_forward: int
    norm: str
    left_out: tuple[str, ...]
    """What the file holds besides the policies."""
    sha256: str
    known: str = ""
    """The published file this is, '' if its digest is not in the table."""

    @property
    def policy(self) -> dict[str, str | int]:
        """The recipe's `[policy]` section for these weights."""
        keys = ("width", "layers", "heads", "feed_forward", "norm")
        return {"kind": "pomo", **{key: getattr(self, key) for key in keys}}


def load_checkpoint(path: Path, heads: int | None = None, norm: str | None = None) -> Checkpoint:
    """The policies in a .pt file; a file that is not POMO for TSP or CVRP is refused with the reason.

    Neither the number of heads nor the kind of a norm without statistics can be read off the weights.
    """
    data = read_bytes(path, MAX_CHECKPOINT)
    _check_zip(data, path)
    states, left_out = _states(_torch_load(data, str(path)), str(path))
    first = _Mapped(states[0], str(path))
    models = tuple(_Mapped(state, str(path)).renamed(first.shapes()) for state in states)
    digest = hashlib.sha256(data).hexdigest()
    return Checkpoint(
        problem=first.problem,
        models=models,
        width=first.width,
        layers=first.layers,
        heads=_heads(first.width, heads, str(path)),
        feed_forward=first.feed_forward,
        norm="batch" if first.statistics else norm or "instance",
        left_out=tuple(sorted({*left_out, *first.left_out})),
        sha256=digest,
        known=KNOWN.get(digest, ""),
    )


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


def _torch_load(data: bytes, at: str) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds on a damaged or hostile file
        text = str(error)
        found = re.search(r"(?:Unsupported global|Unsupported class|GLOBAL) (\S+)", text)
        if "eights only" in text or "nsupported" in text:
            what = f"it holds more than tensors{f' ({found[1][:80]})' if found else ''}"
        else:
            what = (text.splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"this torch file is refused: {what}", at=at, hint=_HINT) from None


def _check_zip(data: bytes, path: Path) -> None:
    if not data.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, OSError):
        raise DataError(f"{path.name} is truncated", at=str(path), hint="download it again") from None
    if total > len(data):  # torch stores its tensors uncompressed
        raise DataError(f"{path.name} declares {total} bytes and has {len(data)}", at=str(path), hint=_HINT)


def _states(content: Any, at: str) -> tuple[list[dict[str, Tensor]], list[str]]:
    """The state dicts of all models in the file, and the names of what else it holds."""
    left_out: list[str] = []
    if isinstance(content, Mapping) and "model_state_dict" in content:
        left_out = [str(key) for key in content if key != "model_state_dict"]
        content = content["model_state_dict"]
    states = list(content) if isinstance(content, list | tuple) else [content]
    if not 1 <= len(states) <= MAX_MODELS or not all(_is_state(state) for state in states):
        raise DataError("this file holds no state dict of a model", at=at, hint=_HINT)
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


class _Mapped:
    """One state dict under our names, with what its shapes say about the architecture."""

    def __init__(self, state: dict[str, Tensor], at: str) -> None:
        self.at = at
        self.problem = self._problem(state)
        self.tensors: dict[str, Tensor] = {}
        self.left_out: list[str] = []
        for name, tensor in state.items():
            ours = _our_name(name)
            if ours is not None:
                self.tensors[ours] = tensor
            elif name.startswith(("encoder.", "decoder.")) and not name.endswith("num_batches_tracked"):
                raise self.error(f"its parameter {name[:80]} has no place in POMO")
            else:
                self.left_out.append(name)
        self.statistics = any(name.endswith("running_mean") for name in self.tensors)
        self.width = self._size("embed.node.weight")
        self.feed_forward = self._size("layers.0.ff1.weight")
        self.layers = 1 + max(int(name.split(".")[1]) for name in self.tensors if name.startswith("layers."))
        if self.layers > MAX_LAYERS:
            raise self.error(f"it has {self.layers} layers")

    def error(self, what: str) -> DataError:
        return DataError(f"this checkpoint does not fit: {what}", at=self.at, hint=_HINT)

    def _problem(self, state: dict[str, Tensor]) -> str:
        if "encoder.embedding.weight" in state:
            return "tsp"
        if "encoder.embedding_depot.weight" in state:
            return "cvrp"
        if any("row_encoding_block" in name for name in state):
            raise self.error("it is a MatNet (ATSP), which is not imported yet")
        raise self.error(f"its first parameter is {next(iter(state))[:80]}, not an embedding of nodes")

    def _size(self, name: str) -> int:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.ndim != 2:
            raise self.error(f"{name} is missing")
        return int(tensor.shape[0])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The exact table of names and shapes that this architecture has in the file."""
        d, f = self.width, self.feed_forward
        out: dict[str, tuple[int, ...]] = {"embed.node.weight": (d, 3 if self.problem == "cvrp" else 2)}
        out["embed.node.bias"] = (d,)
        if self.problem == "cvrp":
            out |= {"embed.depot.weight": (d, 2), "embed.depot.bias": (d,)}
        for i in range(self.layers):
            at = f"layers.{i}."
            out |= {f"{at}{x}.weight": (d, d) for x in ("q", "k", "v", "combine")}
            out |= {f"{at}ff1.weight": (f, d), f"{at}ff1.bias": (f,), f"{at}ff2.weight": (d, f)}
            own: tuple[str, ...] = (
                "combine.bias",
                "ff2.bias",
                "norm1.weight",
                "norm1.bias",
                "norm2.weight",
                "norm2.bias",
            )
            own += tuple(f"norm{k}.running_{s}" for k in (1, 2) for s in ("mean", "var")) if self.statistics else ()
            out |= {at + x: (d,) for x in own}
        out |= {f"decoder.{x}.weight": (d, d) for x in ("k", "v", "combine")}
        out["decoder.combine.bias"] = (d,)
        out["decoder.last.weight"] = (d, d + 1) if self.problem == "cvrp" else (d, d)
        if self.problem == "tsp":
            out["decoder.first.weight"] = (d, d)
        return out

    def renamed(self, expect: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors, checked against the table; CVRP's joint query map is split into node and load."""
        import torch

        odd = sorted(set(expect) ^ set(self.tensors))
        if odd:
            raise self.error(f"{odd[0]} is {'missing' if odd[0] in expect else 'unexpected'}")
        for name, shape in expect.items():
            tensor = self.tensors[name]
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
                raise self.error(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected float32 {shape}")
            if tensor.layout != torch.strided or not bool(torch.isfinite(tensor).all()):
                raise self.error(f"{name} holds NaN or infinite values")
        out = {name: self.tensors[name].detach().clone().contiguous() for name in sorted(expect)}
        if self.problem == "cvrp":
            joint = out["decoder.last.weight"]
            out["decoder.last.weight"] = joint[:, :-1].clone().contiguous()
            out["decoder.load.weight"] = joint[:, -1:].clone().contiguous()
        return out


def _our_name(name: str) -> str | None:
    """Our name for a parameter of the POMO family, None where there is none."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias", "running_mean", "running_var"):
        return None
    if layer := _LAYER_NAME.fullmatch(stem):
        ours = _LAYER.get(layer[2])
        return f"layers.{int(layer[1])}.{ours}.{kind}" if ours else None
    return f"{_REST[stem]}.{kind}" if stem in _REST else None
