"""What a data set holds, in numbers a person wants to see before using it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnf_cli.formats.dataset import Block, Dataset


def summarise(found: Dataset) -> dict[str, Any]:
    """Counts, sizes, ranges and references; JSON-ready."""
    return {
        "problem": found.problem,
        "count": len(found),
        "solver": found.solver or None,
        **{f"attr {name}": value for name, value in sorted(found.attrs.items())},
        "blocks": [_block(block) for block in found.blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    known = np.array([]) if block.cost is None else block.cost[~np.isnan(block.cost)]
    return {
        "nodes": block.nodes,
        "count": len(block),
        "rule": block.rule,
        "coordinates": _range(block.xy),
        "demand": _range(None if block.demand is None else block.demand[:, 1:]),
        "capacity": _range(block.capacity),
        "matrix": _range(block.matrix),
        "references": len(known),
        "mean reference": round(float(known.mean()), 6) if len(known) else None,
        "proved": 0 if block.proved is None else int(block.proved.sum()),
        "beside": ", ".join(block.extra) or None,
    }


def _range(values: Any) -> str | None:
    if values is None or values.size == 0:
        return None
    return f"{values.min():g} .. {values.max():g}"
