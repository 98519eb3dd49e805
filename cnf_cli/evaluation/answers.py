"""Per-instance results of an evaluation: judged, cut, joined and digested as arrays."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cnf_cli.errors import CheckFailed
from cnf_cli.evaluation.protocol import ProtocolSection, SetEntry
from cnf_cli.evaluation.references import instances_of
from cnf_cli.evaluation.result_table import Column
from cnf_cli.formats.dataset import ARRAYS, Array, Block, Dataset
from cnf_cli.pipeline.work_files import write_atomic
from cnf_cli.problems.validate import InvalidTour


def judge(block: Block, tours: Array) -> Array:
    """The float64 cost (b, m) of every tour (b, m, t) by the block's own rule; an infeasible one stops the run."""
    problem = "cvrp" if block.demand is not None else "tsp"
    cost = np.empty(tours.shape[:2])
    for i, instance in enumerate(instances_of(problem, block)):
        for m, tour in enumerate(tours[i]):
            try:
                cost[i, m] = instance.cost([int(v) for v in tour if v >= 0])
            except InvalidTour as error:
                raise CheckFailed(
                    f"model {m} gave an infeasible tour of {block.names[i] or f'instance {i}'}: {error}",
                    hint="this is a bug in the rollouts: --set runtime.engine=torch, and please report it",
                ) from error
    return cost


def columns_of(data: Dataset, entry: SetEntry, methods: Sequence[str], claimed: bool = False) -> Iterator[Column]:
    """What each method found on one set, out of the set's arrays; `claimed`: its proofs are those of a user's file."""

    def join(name: str) -> Array | None:
        if name not in data.blocks[0].extra:
            return None
        return np.concatenate([block.extra[name] for block in data.blocks]).T

    unknown = [np.full(len(b), np.nan) if b.cost is None else b.cost for b in data.blocks]
    flags = [np.zeros(len(b), bool) if b.proved is None else b.proved for b in data.blocks]
    names = tuple(name for block in data.blocks for name in block.names)
    for k, method in enumerate(methods):
        cost = join(f"cost_{k}")
        if cost is not None:
            about = np.concatenate(unknown), np.concatenate(flags), names, data.solver
            plain = join(f"plain_{k}")
            yield Column(entry.name, method, cost, plain, *about, paired=entry.only < 0, claimed=claimed)


def told_protocol(protocol: ProtocolSection, sets: Sequence[Dataset]) -> dict[str, Any]:
    """The protocol as plain values, each set with digests of its instances and of its references."""
    told = protocol.identity()
    for entry, data in zip(told["sets"], sets, strict=True):
        entry |= {"instances": _digest(data, False), "reference": _digest(data, True), "solver": data.solver}
        entry["count"] = len(data)
    return {"problem": sets[0].problem, **told}


def _digest(data: Dataset, reference: bool) -> str:
    out = hashlib.sha256()
    for block in data.blocks:
        out.update(f"{block.rule} {len(block)} {block.nodes}".encode())
        for name in ("cost",) if reference else ("xy", "matrix", "demand", "capacity"):
            value = getattr(block, name)
            if value is not None:
                out.update(name.encode() + value.tobytes())
    return out.hexdigest()


def first_of(data: Dataset, count: int) -> Dataset:
    """The first `count` instances, over all blocks."""
    blocks, left = [], count
    for block in data.blocks:
        if left > 0:
            blocks.append(rows_of_block(block, slice(0, left)))
        left -= len(block)
    return replace(data, blocks=tuple(blocks))


def rows_of_block(block: Block, rows: slice) -> Block:
    """Some of a block's instances."""
    values = {name: getattr(block, name) for name in ARRAYS}
    cut = {name: None if value is None else value[rows] for name, value in values.items()}
    extra = {name: value[rows] for name, value in block.extra.items()}
    return replace(block, names=block.names[rows], extra=extra, **cut)  # type: ignore[arg-type]


def stack(parts: Sequence[Array]) -> Array:
    """Rows of all parts; tours of different length are padded with -1."""
    if parts[0].ndim < 3:
        return np.concatenate(parts)
    longest = max(part.shape[-1] for part in parts)
    wide = [np.pad(p, ((0, 0), (0, 0), (0, longest - p.shape[-1])), constant_values=-1) for p in parts]
    return np.concatenate(wide)


_PART = ("cost", "plain", "tour", "plain_tour", "seconds")


def save_part(path: Path, arrays: dict[str, Any]) -> None:
    """The file holds the arrays, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def kept_part(path: Path) -> dict[str, Array] | None:
    """The arrays that an interrupted run has kept; None where there are none, or where the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as part:  # checked by the CRC of every array
            return {name: part[name] for name in _PART}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
