"""Checkpoints as safetensors with one metadata key, the same bytes for the same content, read under tight limits."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import ArtifactError, DataError
from cnf_cli.formats.files import file_size
from cnf_cli.regular_files import write_atomic

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MAX_HEADER = 1 << 20
MAX_FILE = 4 << 30
_SIZES = {"F32": 4, "F16": 2, "I64": 8}
_HINT = "make it again: rerun its stage, or `cnf import` the file it came from"


def save(path: Path | str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, half: bool = False) -> None:
    """Afterwards `path` holds the tensors (float32 or int64, finite, on CPU) and `meta`; equal content, equal bytes.

    With `half` the float32 ones are rounded to float16 on disk; `load` gives float32 again.
    """
    import torch
    from safetensors.torch import save as encode

    ready = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.dtype not in (torch.float32, torch.int64):
            raise ArtifactError(f"{name} is {tensor.dtype}: checkpoints hold float32 and int64")
        if half and tensor.is_floating_point():
            tensor = tensor.half()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(
                f"{name} is not finite: this checkpoint would be useless", hint="lower the learning rate"
            )
        ready[name] = tensor.clone()  # safetensors refuses tensors that share memory
    text = json.dumps({**meta, "format": FORMAT}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = encode(ready, metadata={"cnf": text})
    if struct.unpack("<Q", data[:8])[0] > MAX_HEADER:
        raise ArtifactError(f"{len(ready)} tensors are too many for one checkpoint", hint="save each model apart")
    write_atomic(Path(path), data)


def load(
    path: Path | str, expect: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a checkpoint; anything damaged, foreign or not as `expect` says is refused."""
    path = Path(path)
    try:
        size = file_size(path, MAX_FILE)
        with path.open("rb") as file:
            header, start = _header(file.read(8), file, size)
            meta = _meta(header.pop("__metadata__", None))
            layout = _layout(header, size - start)
            if expect is not None:
                _match({name: shape for name, (_, shape, _, _) in layout.items()}, expect)
            file.seek(start)
            body = bytearray(file.read(size - start))
    except ArtifactError as error:
        raise ArtifactError(error.message, at=str(path), hint=error.hint or _HINT) from None
    except (DataError, OSError) as error:
        raise ArtifactError(f"cannot read the checkpoint: {error}", at=str(path), hint=_HINT) from None
    if len(body) != size - start:
        raise ArtifactError("the checkpoint is truncated", at=str(path), hint=_HINT)
    return _tensors(body, layout, path), meta


_Layout = dict[str, tuple[str, tuple[int, ...], int, int]]


def _header(prefix: bytes, file: Any, size: int) -> tuple[dict[str, Any], int]:
    if len(prefix) < 8:
        raise ArtifactError("the checkpoint is truncated")
    length = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER or length + 8 > size:
        raise ArtifactError("this is not a safetensors checkpoint, or its header is damaged")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ArtifactError("the checkpoint's header is damaged") from None
    if not isinstance(header, dict):
        raise ArtifactError("the checkpoint's header is damaged")
    return header, length + 8


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key appears twice")
    return out


def _meta(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict) or set(block) != {"cnf"} or not isinstance(block["cnf"], str):
        raise ArtifactError("this checkpoint was not written by cnf", hint="`cnf import` reads torch checkpoints")
    try:
        meta = json.loads(block["cnf"], object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ArtifactError("the checkpoint's metadata is damaged") from None
    if not isinstance(meta, dict) or not _is_int(meta.get("format")):
        raise ArtifactError("the checkpoint's metadata is damaged")
    if meta["format"] != FORMAT:
        raise ArtifactError(
            f"the checkpoint has format {meta['format']}, this version reads {FORMAT}", hint="update cnf"
        )
    return meta


def _layout(header: dict[str, Any], room: int) -> _Layout:
    """Type, shape, start and end of every tensor; together they fill the file's body exactly."""
    out: _Layout = {}
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ArtifactError(f"tensor {name[:60]!r} is described wrongly")
        shape, span = entry["shape"], entry["data_offsets"]
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in _SIZES:
            raise ArtifactError(f"tensor {name[:60]!r} has type {str(entry['dtype'])[:20]}, expected F32, F16 or I64")
        if not isinstance(shape, list) or len(shape) > 8 or not all(_is_int(s) and s <= room for s in shape):
            raise ArtifactError(f"tensor {name[:60]!r} has a wrong shape")
        if not isinstance(span, list) or len(span) != 2 or not all(_is_int(s) and s <= room for s in span):
            raise ArtifactError(f"tensor {name[:60]!r} lies outside the file")
        if span[1] - span[0] != math.prod(shape) * _SIZES[entry["dtype"]]:
            raise ArtifactError(f"tensor {name[:60]!r} has a shape unlike its size")
        out[name] = (entry["dtype"], tuple(shape), span[0], span[1])
    position = 0
    for _, _, start, end in sorted(out.values(), key=lambda entry: (entry[2], entry[3])):
        if start != position:
            raise ArtifactError("the checkpoint has a hole or an overlap")
        position = end
    if position != room:
        raise ArtifactError("the checkpoint is truncated or has bytes too many")
    return out


def _is_int(value: Any) -> bool:
    return type(value) is int and value >= 0


def _match(shapes: Mapping[str, tuple[int, ...]], expect: Mapping[str, tuple[int, ...]]) -> None:
    hint = "is this the checkpoint of another problem, width or depth? `cnf show ID` tells"
    for what, names in (
        ("lacks", sorted(set(expect) - set(shapes))),
        ("has unknown", sorted(set(shapes) - set(expect))),
    ):
        if names:
            more = f" and {len(names) - 1} more" if names[1:] else ""
            raise ArtifactError(f"the checkpoint {what} {names[0][:80]}{more}", hint=hint)
    for name, shape in expect.items():
        if shapes[name] != tuple(shape):
            raise ArtifactError(f"{name} has shape {shapes[name]}, expected {tuple(shape)}", hint=hint)


def _tensors(body: bytearray, layout: _Layout, path: Path) -> dict[str, Tensor]:
    import torch

    types = {"F32": torch.float32, "F16": torch.float16, "I64": torch.int64}
    out = {}
    for name, (dtype, shape, start, end) in layout.items():
        if start == end:
            out[name] = torch.empty(shape, dtype=torch.int64 if dtype == "I64" else torch.float32)
            continue
        # An own copy: offsets inside the file need not be aligned for the type.
        tensor = torch.frombuffer(bytearray(body[start:end]), dtype=types[dtype]).reshape(shape)
        if dtype != "I64" and not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(f"{name} holds NaN or infinite values", at=str(path), hint=_HINT)
        out[name] = tensor if dtype == "I64" else tensor.float()
    return out
