"""Give a user's instances that are a library's the costs that the library publishes, as `cnf solve` does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cnf_cli.errors import CheckFailed
from cnf_cli.pipeline.job import Job, Result
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Section

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Dataset
    from cnf_cli.formats.item import Item
    from cnf_cli.store import Manifest

VERSION = 1


class KnownSection(Section):
    """What is known, by content: the key changes with the best known costs."""

    best: tuple[float | None, ...]
    """Each instance's reference, its own or its library's."""


def task(data: Manifest, found: Dataset) -> Task | None:
    """`found`, which is what `data` holds, with all references; None where no library has more to say about it."""
    best, own = _best(found), _costs(found)
    return None if best == own else Task(STAGE, {"known": KnownSection(best=best)}, {"data": data})


def run(job: Job) -> Result:
    """Writes data.h5."""
    import numpy as np

    from cnf_cli.formats import dataset

    found = dataset.load(job.inputs["data"].path("data.h5"))
    if _best(found) != job.section("known").best:
        raise CheckFailed("the libraries' costs changed while they were read", hint="run the command again")
    items = _recognised(found)
    blocks = []
    for block in found.blocks:
        own, items = items[: len(block)], items[len(block) :]
        cost, proved = np.array([item.cost for item in own]), np.array([item.proved for item in own])
        blocks.append(block if np.isnan(cost).all() else replace(block, cost=cost, proved=proved))
    made = replace(found, blocks=tuple(blocks), solver=found.solver or "best known")
    dataset.save(job.work / "data.h5", made)
    return Result({"data.h5": job.work / "data.h5"}, {"problem": made.problem, "count": len(made)})


def _recognised(found: Dataset) -> list[Item]:
    from cnf_cli.bench.libraries import recognised
    from cnf_cli.formats.item import items_of

    return [recognised(item) for item in items_of(found)]


def _best(found: Dataset) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(item.cost) else item.cost for item in _recognised(found))


def _costs(found: Dataset) -> tuple[float | None, ...]:
    from cnf_cli.formats.item import items_of

    return tuple(None if math.isnan(item.cost) else item.cost for item in items_of(found))


STAGE = Stage("known", VERSION, run, title=lambda _: "look up best known costs")
