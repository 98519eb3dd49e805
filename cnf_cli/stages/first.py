"""Cut a data set to its first instances, so that nothing after it works on the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Count, Section

if TYPE_CHECKING:
    from cnf_cli.store import Manifest

VERSION = 1


class FirstSection(Section):
    """How many are kept."""

    count: Count


def task(data: Task | Manifest, count: int) -> Task:
    """The first `count` instances of `data`."""
    return Task(STAGE, {"first": FirstSection(count=count)}, {"data": data})


def run(job: Job) -> Result:
    """Writes data.h5."""
    from cnf_cli.evaluation.answers import first_of
    from cnf_cli.formats import dataset

    cut = first_of(dataset.load(job.inputs["data"].path("data.h5")), job.section("first").count)
    dataset.save(job.work / "data.h5", cut)
    return Result({"data.h5": job.work / "data.h5"}, {"problem": cut.problem, "count": len(cut)})


STAGE = Stage("first", VERSION, run, title=lambda task: f"cut to the first {task.dumped()['first']['count']}")
