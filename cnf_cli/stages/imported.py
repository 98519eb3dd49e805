"""Take files from outside into the store: data sets and checkpoints, read in a child process that cannot do harm."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from cnf_cli.errors import DataError
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section
from cnf_cli.stages.job import Job, Result

VERSION = 1


class ImportSection(Section):
    """What was imported, by content, and how it was read."""

    added: ClassVar[tuple[str, ...]] = ("tables",)
    files: tuple[str, ...] = Field(description="sha256 of each file, in the order given")
    names: tuple[str, ...] = Field(description="the files' names: instances and their order take theirs from them")
    solutions: str | None = None
    solutions_name: str | None = Field(None, description="its name says which solver made it")
    problem: str | None = None
    capacity: float | None = None
    heads: int | None = None
    tables: int = Field(1, description="how CSV is read: 2 = with one separator and one decimal mark")


def task(
    paths: Sequence[Path],
    *,
    solutions: Path | None = None,
    problem: str | None = None,
    capacity: float | None = None,
    heads: int | None = None,
) -> Task:
    """The artifact made of these files; its key follows from their content and names."""
    from cnf_cli.formats.read import expand

    files, skipped = expand(list(paths))
    section = ImportSection(
        files=tuple(_digest(path) for path in files),
        names=tuple(path.name for path in files),
        solutions=_digest(solutions) if solutions else None,
        solutions_name=solutions.name if solutions else None,
        problem=problem,
        capacity=capacity,
        heads=heads,
        # What an earlier version made of 6,96;0 is not found again under the key of today's reading.
        tables=2 if any(path.suffix.lower() in (".csv", ".txt", ".tsv") for path in files) else 1,
    )
    return Task(
        STAGE,
        {"import": section},
        local={"paths": files, "solutions": solutions, "skipped": skipped},
        command="cnf import",
    )


def _digest(path: Path) -> str:
    from cnf_cli.formats.files import file_size

    file_size(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise DataError(f"cannot read {path.name}: {error.strerror}", at=str(path)) from None
    return digest.hexdigest()


def run(job: Job) -> Result:
    """Writes data.h5, or one model file per policy."""
    from cnf_cli.formats.dataset import Dataset
    from cnf_cli.formats.sandbox import read_safely

    section = job.section("import")
    if job.local["skipped"]:
        job.bars.say(f"not instance files, left alone: {', '.join(job.local['skipped'][:10])}")
    paths, solutions = job.local["paths"], job.local["solutions"]
    digests = [*section.files, *filter(None, [section.solutions])]
    found = read_safely(paths, section.problem, section.capacity, solutions, section.heads, digests=digests)
    return _data(job, found) if isinstance(found, Dataset) else _policies(job, found)


def _data(job: Job, found: Any) -> Result:
    from cnf_cli.formats import dataset

    dataset.save(job.work / "data.h5", found)
    checks = {"problem": found.problem, "count": len(found)}
    notes = found.attrs.get("notes")
    return Result({"data.h5": job.work / "data.h5"}, {**checks, "warnings": [str(notes)]} if notes else checks)


def _policies(job: Job, found: Any) -> Result:
    from cnf_cli.recipe.build import build_section
    from cnf_cli.stages.models import fit, make_policy, make_problem, save_models

    problem_section: Any = build_section("problem", {"kind": found.problem})
    policy_section: Any = build_section("policy", found.policy)
    problem = make_problem(problem_section)
    models = []
    for tensors in found.models:
        policy = make_policy(policy_section, problem)
        fit(policy, tensors, str(job.local["paths"][0]))
        models.append(policy)
    warnings = []
    if found.left_out:
        warnings.append(f"left out, not part of the policy: {', '.join(found.left_out)}")
    if not found.known:
        warnings.append(f"no published file is known with sha256 {found.sha256[:16]}...: trust it as far as its source")
    files = save_models(job.work, models, problem_section, policy_section)
    checks = {"problem": found.problem, "models": len(models), "known": found.known, "warnings": warnings}
    return Result(files, checks)


STAGE = Stage("imported", VERSION, run, title=lambda _: "import files")
