"""Benchmark instances as a data set, with the costs the libraries publish as their reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cnf_cli.errors import CheckFailed
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section

if TYPE_CHECKING:
    from cnf_cli.bench.libraries import Library
    from cnf_cli.formats.item import Item

VERSION = 1


class BenchSection(Section):
    """Which instances, by content: the key does not depend on where they were found."""

    library: str
    names: tuple[str, ...]
    sha256: tuple[str, ...]
    best: tuple[float | None, ...]


def task(library: Library, items: Sequence[Item], alias: str | None = None) -> Task:
    """The data set of these instances."""
    from cnf_cli.bench.libraries import digest

    section = BenchSection(
        library=library.name,
        names=tuple(item.name for item in items),
        sha256=tuple(digest(item) for item in items),
        best=tuple(None if math.isnan(item.cost) else item.cost for item in items),
    )
    return Task(
        STAGE, {"bench": section}, alias=alias, command=f"cnf bench fetch {library.name}", local={"items": items}
    )


def run(job: Job) -> Result:
    """Writes data.h5."""
    from cnf_cli.bench.libraries import digest, library
    from cnf_cli.formats import dataset
    from cnf_cli.formats.item import collect

    section, items = job.section("bench"), list(job.local["items"])
    if tuple(digest(item) for item in items) != section.sha256:
        raise CheckFailed("the instances changed while they were read", hint="run the command again")
    about = library(section.library)
    made = collect(items, solver=f"{about.name} {about.what}", attrs={"source": about.name})
    dataset.save(job.work / "data.h5", made)
    return Result({"data.h5": job.work / "data.h5"}, {"problem": made.problem, "count": len(made)})


STAGE = Stage("bench", VERSION, run, title=lambda task: f"take in {task.dumped()['bench']['library']}")
