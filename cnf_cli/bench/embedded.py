"""The small set inside the package: all instances packed into one block, since HDF5 has a price per array."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache

import numpy as np

from cnf_cli.bench.libraries import HERE
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Array, Block, Dataset
from cnf_cli.formats.item import Item
from cnf_cli.problems.distance import RULES


def pack(items: Sequence[Item]) -> Dataset:
    """All instances in one block, padded with zeros; `unpack` gives them back."""
    b, widest = len(items), max(item.nodes for item in items)
    square = max((item.nodes for item in items if item.matrix is not None), default=1)
    xy, matrix = np.zeros((b, widest, 2)), np.zeros((b, square, square))
    demand, capacity = np.zeros((b, widest)), np.zeros(b)
    for i, item in enumerate(items):
        if item.xy is not None:
            xy[i, : item.nodes] = item.xy
        if item.matrix is not None:
            matrix[i, : item.nodes, : item.nodes] = item.matrix
        if item.demand is not None:
            demand[i, : item.nodes], capacity[i] = item.demand, item.capacity
    extra: dict[str, Array] = {
        "nodes": np.array([item.nodes for item in items], "i4"),
        "rule": np.array([RULES.index(item.rule) for item in items], "i4"),
        "shown": np.array([item.xy is not None for item in items], "i4"),
        "load": demand,
        "limit": capacity,
        "weights": matrix,
    }
    block = Block(xy=xy, names=tuple(item.name for item in items), extra=extra)
    return Dataset("benchmark", (block,), attrs={"source": "embedded.toml"})


def unpack(packed: Dataset) -> list[Item]:
    """The instances that `pack` was given."""
    out = []
    block = packed.blocks[0]
    assert block.xy is not None
    for i, name in enumerate(block.names):
        n, rule = int(block.extra["nodes"][i]), RULES[int(block.extra["rule"][i])]
        limit = float(block.extra["limit"][i])
        item = Item(
            "cvrp" if limit else "tsp",
            rule,
            name,
            xy=block.xy[i, :n] if block.extra["shown"][i] else None,
            demand=block.extra["load"][i, :n] if limit else None,
            capacity=limit or None,
            matrix=block.extra["weights"][i, :n, :n] if rule == "explicit" else None,
            at="the embedded set",
        )
        out.append(item)
    return out


@cache
def embedded(problem: str) -> dict[str, Item]:
    """The instances of that problem inside this package, by name."""
    return {item.name: item for item in unpack(dataset.load(HERE / "embedded.h5")) if item.problem == problem}


@cache
def origins() -> dict[str, str]:
    """Instance name -> the package it was taken from, with its version and terms."""
    out: dict[str, str] = {}
    for source in tomllib.loads((HERE / "embedded.toml").read_text(encoding="utf-8"))["source"]:
        about = f"{source['package']} {source['version']} ({source['kind']}, {source['terms']})"
        out |= {file.rpartition(".")[0]: about for file in source["files"]}
    return out
