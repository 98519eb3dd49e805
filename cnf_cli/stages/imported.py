"""Take files from outside into the store: data sets and checkpoints, read in a child process that cannot do harm."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from cnf_cli.errors import DataError, NoAnswer
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section

VERSION = 1
SMALL = 8
"""Nodes of the map on which an imported policy must prove that it can answer."""


class ImportSection(Section):
    """What was imported, by content, and how it was read."""

    added: ClassVar[tuple[str, ...]] = ("tables", "norm", "one_hot_seeds")
    files: tuple[str, ...] = Field(description="sha256 of each file, in the order given")
    names: tuple[str, ...] = Field(description="the files' names: instances and their order take theirs from them")
    solutions: str | None = None
    solutions_name: str | None = Field(None, description="its name says which solver made it")
    problem: str | None = None
    capacity: float | None = None
    heads: int | None = None
    tables: int = Field(1, description="how CSV is read: 2 = with one separator and one decimal mark")
    norm: str | None = None
    one_hot_seeds: int | None = None


def task(
    paths: Sequence[Path],
    *,
    solutions: Path | None = None,
    problem: str | None = None,
    capacity: float | None = None,
    heads: int | None = None,
    norm: str | None = None,
    one_hot_seeds: int | None = None,
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
        norm=norm,
        one_hot_seeds=one_hot_seeds,
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
    from cnf_cli.formats.legacy import Untold
    from cnf_cli.formats.sandbox import read_safely

    section = job.section("import")
    if job.local["skipped"]:
        job.bars.say(f"not instance files, left alone: {', '.join(job.local['skipped'][:10])}")
    paths, solutions = job.local["paths"], job.local["solutions"]
    digests = [*section.files, *filter(None, [section.solutions])]
    said = Untold(section.heads, section.norm, section.one_hot_seeds)
    found = read_safely(paths, section.problem, section.capacity, solutions, said, digests=digests)
    return _data(job, found) if isinstance(found, Dataset) else _policies(job, found)


def _data(job: Job, found: Any) -> Result:
    from cnf_cli.formats import dataset

    dataset.save(job.work / "data.h5", found)
    checks = {"problem": found.problem, "count": len(found)}
    notes = found.attrs.get("notes")
    return Result({"data.h5": job.work / "data.h5"}, {**checks, "warnings": [str(notes)]} if notes else checks)


def _policies(job: Job, found: Any) -> Result:
    from cnf_cli.formats import checkpoint
    from cnf_cli.recipe.build import build_section
    from cnf_cli.training.stored_policies import fit, make_policy, make_problem, save_models

    problem_section: Any = build_section("problem", {"kind": found.problem})
    policy_section: Any = build_section("policy", found.policy)
    problem = make_problem(problem_section)
    models = []
    for tensors in found.models:
        policy = make_policy(policy_section, problem)
        fit(policy, tensors, str(job.local["paths"][0]))
        answers(policy, problem, str(job.local["paths"][0]))
        models.append(policy)
    warnings = []
    if found.left_out:
        warnings.append(f"left out, not part of the policy: {', '.join(found.left_out)}")
    if not found.known:
        warnings.append(f"no published file is known with sha256 {found.sha256[:16]}...: trust it as far as its source")
    if found.told:
        warnings.append(f"taken on your word, because no weight tells: {'; '.join(found.told)}")
    files = save_models(job.work, models, problem_section, policy_section)
    if found.router is not None:
        files["router.safetensors"] = job.work / "router.safetensors"
        checkpoint.save(files["router.safetensors"], found.router, {"kind": "router"})
    checks = {"problem": found.problem, "models": len(models), "known": found.known, "warnings": warnings}
    return Result(files, checks)


def answers(policy: Any, problem: Any, at: str) -> None:
    """Raises unless the policy gives every move of a plain tour on a small map a probability.

    Weights can be finite and yet so large that every score is infinite or no number.
    """
    import torch

    from cnf_cli.engine.torch import TorchEngine

    nodes = min(SMALL, getattr(policy, "one_hot_seeds", SMALL))
    inst = problem.sample(2, rng=torch.Generator().manual_seed(0), n=nodes)
    # With a depot one customer at a time: 0 1 0 2 0 ...; the other starts follow in turn.
    if problem.depots:
        starts = [torch.arange(nodes).roll(-k) + 1 for k in range(nodes)]
        tours = torch.stack([torch.stack([torch.zeros_like(s), s], 1).flatten() for s in starts])
    else:
        tours = torch.stack([torch.arange(nodes).roll(-k) for k in range(nodes)])
    try:
        with torch.no_grad():
            tables = policy.eval().encode(inst)
            log_prob = TorchEngine().log_prob(tables, problem.world(inst), tours.expand(len(inst), -1, -1))
        finite = bool(log_prob.isfinite().all())
    except NoAnswer:
        finite = False
    if not finite:
        raise DataError(
            f"this policy cannot answer: its scores on a map of {nodes} nodes are not finite",
            at=at,
            hint="its weights are finite and far too large: is the file damaged, or did its training diverge?",
        )


STAGE = Stage("imported", VERSION, run, title=lambda _: "import files")
