"""Measure policies and solvers on sets of instances against a reference; every tour judged, every cost in float64."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnf_cli.errors import RecipeError
from cnf_cli.evaluation.protocol import ProtocolSection, SetEntry, told_bias
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.pipeline.work_files import write_atomic

if TYPE_CHECKING:
    from cnf_cli.store import Manifest

VERSION = 4


@dataclass(frozen=True)
class SetOf:
    """A set to measure on: the labelled data, and each solver row's own labelling of it."""

    name: str
    data: Task | Manifest
    solved: tuple[Task | Manifest, ...] = ()
    only: int = -1


def task(
    sets: Sequence[SetOf],
    policies: Sequence[tuple[str, Task | Manifest]],
    solvers: Sequence[str] = (),
    *,
    alias: str | None = None,
    command: str = "cnf evaluate",
    **protocol: Any,
) -> Task:
    """The evaluation of these methods on these sets; `protocol` holds augment, decode, distance_bias and so on."""
    if not policies and not solvers:
        raise RecipeError("nothing to evaluate", hint="--with ID for a policy, --solver NAME for a solver")
    inputs: dict[str, Task | Manifest] = {}
    for s, one in enumerate(sets):
        inputs[f"data-{s}"] = one.data
        inputs |= {f"solver-{k}-{s}": made for k, made in enumerate(one.solved)}
    inputs |= {f"policy-{k}": source for k, (_, source) in enumerate(policies)}
    section = ProtocolSection(
        sets=tuple(SetEntry(name=one.name, only=one.only) for one in sets),
        policies=tuple(name + told_bias(protocol.get("distance_bias", ())) for name, _ in policies),
        solvers=tuple(solvers),
        **protocol,
    )
    return Task(STAGE, {"protocol": section}, inputs, alias=alias, command=command)


def run(job: Job) -> Result:
    """Writes evaluation.h5 (instances, references, every model's costs and tours) and rows.json."""
    from cnf_cli.evaluation.answers import told_protocol
    from cnf_cli.evaluation.methods import measure
    from cnf_cli.evaluation.result_table import comparisons_of, rows_of
    from cnf_cli.formats import dataset

    protocol: ProtocolSection = job.section("protocol")
    found = measure(job, protocol)
    columns = [column for _, _, more in found for column in more]
    rows = [row for column in columns for row in rows_of(column, protocol.augment, protocol.decode)]
    table = {
        "problem": found[0][1].problem,
        "protocol": told_protocol(protocol, [data for _, data, _ in found]),
        "rows": rows,
        "comparisons": comparisons_of(columns),
    }
    whole = dataset.Dataset(
        found[0][1].problem,
        tuple(block for _, data, _ in found for block in data.blocks),
        attrs={"methods": json.dumps([*protocol.policies, *protocol.solvers])},
    )
    dataset.save(job.work / "evaluation.h5", whole)
    write_atomic(job.work / "rows.json", json.dumps(table, indent=1, allow_nan=False).encode())
    checks: dict[str, Any] = {"problem": table["problem"], "rows": len(rows)}
    unproved = sorted({row["set"] for row in rows if not row["proved"]})
    checks |= {"reference_not_proved": unproved} if unproved else {}
    files = {name: job.work / name for name in ("evaluation.h5", "rows.json")}
    return Result(files, checks)


STAGE = Stage(
    "evaluate",
    VERSION,
    run,
    title=lambda _: "measure before and after",
    command=lambda _, recipe: f"cnf evaluate {recipe}" if recipe else "",
)
