"""An evaluation instance by instance: a benchmark's, or those of a user's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cnf_cli.cli.context import Context
    from cnf_cli.cli.measured import Table
    from cnf_cli.store import Manifest

SHOWN = 100
"""Lines of the table; --json has them all."""


def instance_rows(
    ctx: Context, manifest: Manifest, told: dict[str, Any], library: str = "", *, paper: bool = False
) -> list[dict[str, Any]]:
    """One entry per named instance: size, known cost, each method's cost and gap; a library's as the paper has them."""
    from cnf_cli.bench.libraries import LIBRARIES
    from cnf_cli.formats import dataset

    found = dataset.load(ctx.store.open(manifest.key, "evaluation.h5"))
    methods = [*told["protocol"]["policies"], *told["protocol"]["solvers"]]
    published = LIBRARIES[library].paper if library else {}
    rows = []
    for block, i in found.instances():
        name, known = block.names[i], float("nan") if block.cost is None else float(block.cost[i])
        if not name:
            continue
        costs = {method: float(block.extra[f"cost_{k}"][i].min()) for k, method in enumerate(methods)}
        if paper and name in published:
            costs |= {"paper POMO": published[name]["pomo"], "paper CNF": published[name]["cnf"]}
        row: dict[str, Any] = {"name": name, "nodes": block.nodes, _known(library): None if known != known else known}
        rows.append({**row, "cost": costs, "gap_percent": {name: gap_percent(c, known) for name, c in costs.items()}})
    if library:
        order = {name: k for k, name in enumerate(published)}
        rows.sort(key=lambda row: (order.get(row["name"], len(order)), row["nodes"], row["name"]))
    return rows


def _known(library: str) -> str:
    return "best_known" if library else "reference"


def gap_percent(cost: float, known: float) -> float | None:
    """How far a cost lies above a known one; None where nothing is known, or where a share of nothing is asked."""
    if known != known or (known == 0 and cost != 0):
        return None
    return 100 * (cost / known - 1) if known else 0.0


def instance_table(rows: list[dict[str, Any]], library: str = "") -> Table:
    """The first rows, and the mean gap over all instances that every column has."""
    from cnf_cli.cli.measured import number, percent

    known_as = _known(library)
    names = list(dict.fromkeys(name for row in rows for name in row["cost"]))
    head = ["instance", "nodes", known_as.replace("_", " "), *(part for name in names for part in (name, "gap %"))]
    lines = []
    for row in rows[:SHOWN]:
        cells = [cell for n in names for cell in (number(row["cost"].get(n)), percent(row["gap_percent"].get(n)))]
        lines.append([row["name"], str(row["nodes"]), number(row[known_as]), *cells])
    if rows[SHOWN:]:
        lines.append([f"and {len(rows) - SHOWN} more", *[""] * (len(head) - 1)])
    shared = [row for row in rows if all(row["gap_percent"].get(name) is not None for name in names)]
    if shared:
        means = [sum(row["gap_percent"][name] for row in shared) / len(shared) for name in names]
        lines.append([f"mean of {len(shared)}", "", "", *(cell for mean in means for cell in ("", percent(mean)))])
    return head, lines
