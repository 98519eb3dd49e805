"""Put several evaluations side by side: only where they measured the same things in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cnf_cli.errors import RecipeError
from cnf_cli.evaluation.answers import columns_of
from cnf_cli.evaluation.protocol import Roll, SetEntry, unequal
from cnf_cli.evaluation.result_table import Column, comparisons_of
from cnf_cli.formats import dataset
from cnf_cli.formats.dataset import Dataset
from cnf_cli.pipeline.job import Artifact
from cnf_cli.store import Manifest, Store


def together(store: Store, found: Sequence[tuple[Manifest, dict[str, Any]]]) -> dict[str, Any]:
    """All rows, each method once, and every pair tested on the sets they share; an error names what differs."""
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
    roll = Roll()
    for manifest, told in found:
        names = roll.enter(manifest, told["protocol"])
        for row in told["rows"]:
            name, known = names[row["set"], row["method"]]
            if not known:
                rows.append({**row, "method": name, "evaluation": manifest.key})
        for column in _columns(store, manifest, told):
            name, known = names[column.set, column.method]
            if not known:
                columns.append(replace(column, method=name))
    order = {name: k for k, name in enumerate(dict.fromkeys(row["set"] for row in rows))}
    rows.sort(key=lambda row: order[row["set"]])
    return {"evaluations": [m.key for m, _ in found], "rows": rows, "comparisons": comparisons_of(columns)}


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
