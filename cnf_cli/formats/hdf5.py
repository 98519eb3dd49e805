"""The data set's file: gzip'd HDF5, the same bytes for the same data, read under tight limits (promise 12)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cnf_cli.errors import CnfError, DataError
from cnf_cli.formats.dataset import ARRAYS, WORD, Array, Block, Dataset
from cnf_cli.formats.files import MAX_BINARY, file_size
from cnf_cli.regular_files import write_atomic

FORMAT = 1
SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_BYTES = 2 << 30
MAX_RATIO = 1000
MAX_RANK = 4
MAX_BLOCKS = 10_000
MAX_EXTRA = 64
# 64 KiB of equal bytes deflate less than 1000-fold, so what is written here always passes MAX_RATIO when read.
_CHUNK = 1 << 16
_MAX_CHUNK = 16 << 20
_MAX_META = 60_000
_NUMBERS = ("<f4", "<f8", "<i4", "<i8")
_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE)
_LAYOUTS = (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED)


def save(path: Path | str, dataset: Dataset) -> None:
    """Afterwards `path` holds the whole data set; equal data give equal bytes."""
    meta = {"format": FORMAT, "problem": dataset.problem, "solver": dataset.solver, "attrs": dataset.attrs}
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > _MAX_META:
        raise DataError(f"the attributes of a data set take {len(text)} bytes, at most {_MAX_META} are stored")
    if len(dataset.blocks) > MAX_BLOCKS:
        raise DataError(f"{len(dataset.blocks)} sizes in one data set, at most {MAX_BLOCKS}", hint="import them apart")
    size = sum(_size(block) for block in dataset.blocks)
    if size > MAX_BYTES:
        raise DataError(f"this data set takes {size} bytes, at most {MAX_BYTES} are stored in one", hint="split it")
    write_atomic(Path(path), _image(text, dataset.blocks))


def _image(meta: bytes, blocks: Sequence[Block]) -> bytes:
    """The bytes of the file. It is made in memory: the library does not survive a disk that fills up under it."""
    with h5py.File("data.h5", "w", driver="core", backing_store=False) as file:
        file.attrs["cnf"] = np.bytes_(meta)
        for i, block in enumerate(blocks):
            _write_block(file.create_group(f"blocks/{i:05d}"), block)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _size(block: Block) -> int:
    arrays = [getattr(block, name) for name in ARRAYS] + list(block.extra.values())
    return sum(int(a.nbytes) for a in arrays if a is not None) + len(block) * 256


def _write_block(group: h5py.Group, block: Block) -> None:
    group.attrs["rule"] = np.bytes_(block.rule)
    for name in ARRAYS:
        value = getattr(block, name)
        if value is not None:
            _write(group, name, value.astype("<i4") if name == "proved" else value)
    if any(block.names):
        _write(group, "names", np.array([name.encode() for name in block.names]))
    for name, value in block.extra.items():
        _write(group.require_group("extra"), name, value)


def _write(group: h5py.Group, name: str, value: Array) -> None:
    if value.size == 0:
        raise DataError(f"array {name!r} is empty")
    group.create_dataset(name, data=value, chunks=_chunks(value), compression="gzip", compression_opts=4, shuffle=True)


def _chunks(value: Array) -> tuple[int, ...]:
    """As many whole rows as fit into one chunk; later axes first."""
    out, room = [], max(1, _CHUNK // value.itemsize)
    for length in reversed(value.shape):
        out.append(min(length, max(1, room)))
        room //= length
    return tuple(reversed(out))


def load(path: Path | str) -> Dataset:
    """The data set in `path`; any other or damaged file is a `DataError`."""
    path = Path(path)
    file_size(path, MAX_BINARY)
    with path.open("rb") as raw:
        if raw.read(len(SIGNATURE)) != SIGNATURE:
            raise DataError(f"{path.name} is not an HDF5 file", at=str(path), hint=f"`cnf import {path}`")
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _Reader().dataset(file)
    except CnfError as error:
        raise DataError(error.message, at=str(path), hint=error.hint or _HINT) from None
    except Exception as error:  # h5py raises many kinds on a damaged file
        what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{path.name} is damaged: {what}", at=str(path), hint=_HINT) from error


_HINT = "make it again with `cnf data generate` or `cnf import`"


class _Reader:
    """Reads one file and counts the bytes it has asked for, so that the sum stays bounded as well."""

    def __init__(self) -> None:
        self.total = 0

    def dataset(self, file: h5py.File) -> Dataset:
        meta = json.loads(_attribute(file, "cnf", _MAX_META))
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise DataError("this data set has a format this version does not know", hint="install a newer cnf")
        if set(meta) != {"format", "problem", "solver", "attrs"} or not isinstance(meta["attrs"], dict):
            raise DataError("this is not a cnf data set")
        if not isinstance(meta["problem"], str) or not isinstance(meta["solver"], str):
            raise DataError("this is not a cnf data set")
        if _children(file, 1) != ["blocks"]:
            raise DataError("this is not a cnf data set")
        groups = _group(file, "blocks")
        blocks = tuple(self.block(_group(groups, name)) for name in _children(groups, MAX_BLOCKS))
        return Dataset(problem=meta["problem"], blocks=blocks, solver=meta["solver"], attrs=meta["attrs"])

    def block(self, group: h5py.Group) -> Block:
        values: dict[str, Any] = {"rule": _attribute(group, "rule", 64).decode("ascii")}
        for name in _children(group, len(ARRAYS) + 2):
            if name == "extra":
                inner = _group(group, name)
                values[name] = {key: self.array(inner, key) for key in _children(inner, MAX_EXTRA)}
            elif name == "names":
                values[name] = tuple(bytes(v).decode() for v in self.array(group, name, text=True).reshape(-1))
            elif name in ARRAYS:
                values[name] = self.array(group, name)
            else:
                raise DataError(f"unknown array {name!r} in a data set")
        return Block(**values)

    def array(self, group: h5py.Group, name: str, text: bool = False) -> Array:
        """One array; everything it declares is checked before a byte of it is read."""
        node = group.get(name) if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        if not isinstance(node, h5py.Dataset):
            raise DataError(f"{name!r} is not an array stored in this file")
        _check_type(node, name, text)
        _check_storage(node, name)
        self.total += node.nbytes
        if self.total > MAX_BYTES:
            raise DataError(f"the arrays up to {name!r} take more than {MAX_BYTES} bytes")
        return np.asarray(node[()])


def _check_type(node: h5py.Dataset, name: str, text: bool) -> None:
    kind = node.id.get_type()
    if text:
        fixed = kind.get_class() == h5py.h5t.STRING and not kind.is_variable_str() and kind.get_size() <= 256
        if not fixed or node.ndim != 1:
            raise DataError(f"{name!r} is not a list of short names")
    elif kind.get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) or node.dtype.str not in _NUMBERS:
        raise DataError(f"{name!r} holds {node.dtype}, expected float32, float64, int32 or int64")
    if not 1 <= node.ndim <= MAX_RANK:
        raise DataError(f"{name!r} has {node.ndim} axes, expected 1 to {MAX_RANK}")


def _check_storage(node: h5py.Dataset, name: str) -> None:
    plan = node.id.get_create_plist()
    if plan.get_layout() not in _LAYOUTS or plan.get_external_count():
        raise DataError(f"{name!r} is stored outside this file")
    if any(plan.get_filter(i)[0] not in _FILTERS for i in range(plan.get_nfilters())):
        raise DataError(f"{name!r} uses a filter other than gzip and shuffle")
    if node.chunks and np.prod([float(c) for c in node.chunks]) * node.dtype.itemsize > _MAX_CHUNK:
        raise DataError(f"{name!r} has chunks above {_MAX_CHUNK} bytes")
    declared = float(np.prod([float(s) for s in node.shape])) * node.dtype.itemsize
    stored = node.id.get_storage_size()
    if declared > MAX_BYTES or declared > MAX_RATIO * stored:
        raise DataError(f"{name!r} declares {declared:.0f} bytes and stores {stored}")


def _attribute(node: h5py.Group, name: str, limit: int) -> bytes:
    if name not in node.attrs:
        raise DataError("this is not a cnf data set", hint="`cnf import` reads data sets of other tools")
    attribute = node.attrs.get_id(name)
    if attribute.dtype.kind != "S" or attribute.shape != () or attribute.dtype.itemsize > limit:
        raise DataError(f"attribute {name!r} is not a short text")
    return bytes(node.attrs[name])


def _group(parent: h5py.Group, name: str) -> h5py.Group:
    node = parent.get(name) if isinstance(parent.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(node, h5py.Group):
        raise DataError(f"{name!r} is not a group stored in this file")
    return node


def _children(group: h5py.Group, limit: int) -> list[str]:
    """Sorted names of a group's members, counted first."""
    if len(group) > limit:
        raise DataError(f"{len(group)} members where at most {limit} are expected")
    names = sorted(group)
    if not all(WORD.fullmatch(name) for name in names):
        raise DataError("a member's name is not a plain word")
    return names
