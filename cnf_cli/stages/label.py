"""Give a data set its reference: cost, tour and proof flag of every instance by a real solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Block, Dataset
    from cnf_cli.solvers.pool import Outcome
    from cnf_cli.store import Manifest

VERSION = 1
_LISTED = 50
_TIMED = 200_000
"""So many per-instance times still fit into a manifest."""


class LabelSection(Section):
    """Who is asked, and for how long."""

    solver: str = Field(description="solver plugin: `cnf solvers`")
    timeout_seconds: float = Field(600.0, gt=0, description="time per instance before the fallback is asked")
    keep: bool = Field(False, description="keep the references the data set has; ask for the others only")


def task(
    data: Task | Manifest,
    solver: str,
    params: Mapping[str, Any] | None = None,
    *,
    keep: bool = False,
    timeout_seconds: float = 600.0,
    alias: str | None = None,
    local: Mapping[str, Any] | None = None,
) -> Task:
    """The data set with references by `solver`; `local` may hold jobs, executor and address."""
    from cnf_cli.solvers.run import module_of

    settings: Section = module_of(solver).Params(**(params or {}))
    section = LabelSection(solver=solver, timeout_seconds=timeout_seconds, keep=keep)
    source = data.key[:12] if not isinstance(data, Task) else "ID"
    command = f"cnf label {source} --solver {solver}"
    return Task(STAGE, {"label": section, "params": settings}, {"data": data}, alias, command, dict(local or {}))


def run(job: Job) -> Result:
    """Writes data.h5: the same instances in the same order, with their references."""
    import math

    from cnf_cli.evaluation.references import Ask, answers, instances_of
    from cnf_cli.formats import dataset
    from cnf_cli.solvers.run import describe_choice

    section = job.section("label")
    data = dataset.load(job.inputs["data"].path("data.h5"))
    job.bars.say(f"solver: {describe_choice(section.solver, data.problem)}")
    ask = Ask(section.solver, job.section("params").model_dump(), section.timeout_seconds, **job.local)
    given = [one for block in data.blocks for one in instances_of(data.problem, block)]
    known = [block.cost is not None and not math.isnan(block.cost[i]) and section.keep for block, i in data.instances()]
    asked = [k for k, has in enumerate(known) if not has]
    outcomes: list[Outcome | None] = [None] * len(given)
    for k, outcome in zip(asked, answers([given[k] for k in asked], ask, job), strict=True):
        outcomes[k] = outcome
    labelled = _with(data, outcomes, section.solver)
    _no_proof_is_beaten(data, labelled)
    dataset.save(job.work / "data.h5", labelled)
    names = [block.names[i] or f"instance {k}" for k, (block, i) in enumerate(data.instances())]
    found = [o for o in outcomes if o is not None]
    job.provenance["solver_seconds"] = round(sum(o.seconds for o in found), 3)
    if len(found) <= _TIMED:
        # Times are facts about this run: in the data they would change its bytes with every run.
        job.provenance["seconds_each"] = [round(o.seconds, 4) for o in found]
    checks = {"problem": data.problem, "count": len(data), **_checks(outcomes, names)}
    return Result({"data.h5": job.work / "data.h5"}, checks)


def _checks(outcomes: Sequence[Outcome | None], names: Sequence[str]) -> dict[str, Any]:
    from cnf_cli.solvers.base import Answer, Failure

    answered = [o for o in outcomes if isinstance(o, Answer)]
    failed = [(n, o) for n, o in zip(names, outcomes, strict=True) if isinstance(o, Failure)]
    fallen = [(n, o) for n, o in zip(names, outcomes, strict=True) if isinstance(o, Answer) and "fallback" in o.note]
    told: dict[str, Any] = {
        "solved": dict(sorted(Counter(o.solver for o in answered).items())),
        "kept": sum(o is None for o in outcomes),
        "proved": sum(o.proved for o in answered),
        "failed": {n: o.note[:300] for n, o in failed[:_LISTED]},
        "fallback": {n: o.note[:300] for n, o in fallen[:_LISTED]},
    }
    warnings = []
    if failed:
        shown = ", ".join(n for n, _ in failed[:5])
        warnings.append(f"{len(failed)} instances have no reference: {shown}; `cnf show ID` says why")
    if fallen:
        shown = ", ".join(n for n, _ in fallen[:5])
        warnings.append(f"{len(fallen)} instances were solved by a fallback: {shown}; `cnf show ID` says why")
    return {**told, "warnings": warnings} if warnings else told


def _with(data: Dataset, outcomes: Sequence[Outcome | None], solver: str) -> Dataset:
    """The data set with what was found; instances that were not asked keep what they had."""
    low, blocks = 0, []
    for block in data.blocks:
        blocks.append(_block_with(block, outcomes[low : low + len(block)]))
        low += len(block)
    kept = any(o is None for o in outcomes)
    asked = any(o is not None for o in outcomes)
    names = ([data.solver or "published"] if kept else []) + ([solver] if asked else [])
    return replace(data, blocks=tuple(blocks), solver=" + ".join(dict.fromkeys(names)))


def _no_proof_is_beaten(before: Dataset, after: Dataset) -> None:
    """An error where the new answers lie below optima that were proved before, or the old ones below new proofs."""
    from cnf_cli.evaluation.proofs import check, reference_proof

    old, new = before.solver or "the data's own reference", after.solver
    for was, now in zip(before.blocks, after.blocks, strict=True):
        if was.cost is not None and now.cost is not None:
            check(now, (new, now.cost), (f"{old} (before)", reference_proof(was)))
            check(now, (f"{old} (before)", was.cost), (new, reference_proof(now)))


def _block_with(block: Block, outcomes: Sequence[Outcome | None]) -> Block:
    import numpy as np

    from cnf_cli.formats.item import pad_tours
    from cnf_cli.solvers.base import Answer

    cost = np.full(len(block), np.nan) if block.cost is None else block.cost.copy()
    proved = np.zeros(len(block), bool) if block.proved is None else block.proved.copy()
    tours: list[Sequence[int]] = [block.tour_of(i) or () for i in range(len(block))]
    for i, outcome in enumerate(outcomes):
        if isinstance(outcome, Answer):
            cost[i], proved[i], tours[i] = outcome.cost, outcome.proved, outcome.tour
        elif outcome is not None:
            cost[i], proved[i], tours[i] = np.nan, False, ()
    tour = pad_tours(tours) if any(tours) else None
    return replace(block, cost=cost, proved=proved, tour=tour)


def _title(task: Task) -> str:
    source = task.inputs.get("data")
    whose = source.stage.labelled(source) if isinstance(source, Task) else "the clean instances"
    return f"solve {whose} with {task.dumped()['label']['solver']}"


STAGE = Stage(
    "label",
    VERSION,
    run,
    _title,
    command=lambda made, _: f"cnf label {made.inputs['data'].key[:12]} --solver {made.sections['label']['solver']}",
)
