"""Put several evaluations side by side: only where they measured the same things in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnf_cli.errors import RecipeError
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Dataset
from cnf_cli.stages.job import Artifact
from cnf_cli.stages.per_instance import columns_of
from cnf_cli.stages.protocol import SetEntry, unequal
from cnf_cli.stages.rows import Column, comparisons_of
from cnf_cli.store import Manifest, Store


def together(store: Store, found: Sequence[tuple[Manifest, dict[str, Any]]]) -> dict[str, Any]:
    """All rows, methods told apart, and every pair tested on the sets they share; an error names what differs."""
    first = found[0]
    for other in found[1:]:
        differs = unequal(first[1]["protocol"], other[1]["protocol"])
        if differs:
            raise RecipeError(
                f"{first[0].key[:12]} and {other[0].key[:12]} measured different things: {'; '.join(differs)}",
                hint="evaluate both with one `cnf evaluate --data ID --with A --with B`, or with equal settings.",
            )
    rows: list[dict[str, Any]] = []
    columns: list[Column] = []
    seen: set[tuple[str, str]] = set()
    for manifest, told in found:
        names = _distinct(seen, told, manifest.key[:6])
        rows += [
            {**row, "method": names[row["set"], row["method"]], "evaluation": manifest.key} for row in told["rows"]
        ]
        for column in _columns(store, manifest, told):
            object.__setattr__(column, "method", names[column.set, column.method])
            columns.append(column)
    order = {name: k for k, name in enumerate(dict.fromkeys(row["set"] for row in rows))}
    rows.sort(key=lambda row: order[row["set"]])
    return {"evaluations": [m.key for m, _ in found], "rows": rows, "comparisons": comparisons_of(columns)}


def _distinct(seen: set[tuple[str, str]], told: dict[str, Any], tag: str) -> dict[tuple[str, str], str]:
    """(set, method) -> a name that no other evaluation uses on that set."""
    names = {}
    for pair in dict.fromkeys((row["set"], row["method"]) for row in told["rows"]):
        names[pair] = f"{pair[1]} [{tag}]" if pair in seen else pair[1]
    seen.update(names)
    return names


def _columns(store: Store, manifest: Manifest, told: dict[str, Any]) -> list[Column]:
    data = dataset.load(Artifact(store, manifest).path("evaluation.h5"))
    protocol = told["protocol"]
    methods = [*protocol["policies"], *protocol["solvers"]]
    out: list[Column] = []
    for s, entry in enumerate(protocol["sets"]):
        blocks = tuple(block for block in data.blocks if int(block.extra["set"][0]) == s)
        one = Dataset(data.problem, blocks, solver=entry["solver"])
        out += columns_of(one, SetEntry(name=entry["name"], only=entry["only"]), methods)
    return out
