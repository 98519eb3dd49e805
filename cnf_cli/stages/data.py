"""Draw a data set of fresh instances."""

from __future__ import annotations

from pydantic import Field

from cnf_cli.pipeline.job import Job, Result, derived_seed
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe.sections import Count, ProblemSection, Section, Seed
from cnf_cli.store import Manifest, Store

VERSION = 1
_ROWS = 1000


class DataSection(Section):
    """How many instances, from which seed."""

    count: Count = Field(1000, description="instances")
    seed: Seed = Field(4321, description="equal seeds give equal data sets")


def task(problem: ProblemSection, count: int, seed: int, alias: str | None = None) -> Task:
    """The data set of `count` instances of that problem."""
    command = _typed(problem.kind, problem.n, count, problem.dist, seed)
    return Task(STAGE, {"problem": problem, "data": DataSection(count=count, seed=seed)}, alias=alias, command=command)


def drawn(store: Store, manifest: Manifest) -> bool:
    """Whether a problem drew these instances, labelled, cut or attacked since: they have the scale a policy reads."""
    above = manifest.inputs.get("clean" if manifest.stage == "attack" else "data")
    if manifest.stage not in ("label", "first", "known", "attack") or above is None:
        return manifest.stage == STAGE.name
    source = store.read(above.key)
    return source is not None and drawn(store, source)


def run(job: Job) -> Result:
    """Writes data.h5; instance i depends on the seed alone, not on how many there are."""
    import torch

    from cnf_cli.formats import dataset
    from cnf_cli.problems.instances import concatenate
    from cnf_cli.training.stored_policies import make_problem

    section, problem_section = job.section("data"), job.section("problem")
    problem = make_problem(problem_section)
    parts = []
    with job.bars.bar("drawing instances", section.count, "instances") as bar:
        for low in range(0, section.count, _ROWS):
            rng = torch.Generator().manual_seed(derived_seed(section.seed, "data", low))
            parts.append(problem.sample(_ROWS, rng=rng)[: section.count - low])
            bar.advance(len(parts[-1]))
            job.pause_point()
    attrs = {"generator": problem_section.dist, "seed": section.seed, "n": problem_section.n}
    made = dataset.Dataset(problem_section.kind, (problem.to_block(concatenate(parts)),), attrs=attrs)
    dataset.save(job.work / "data.h5", made)
    return Result({"data.h5": job.work / "data.h5"}, {"problem": problem_section.kind, "count": section.count})


def _title(task: Task) -> str:
    problem, drawn = (task.dumped()[name] for name in ("problem", "data"))
    return f"draw {drawn['count']} clean {problem['kind'].upper()}{problem['n']} instances"


def _command(made: Manifest, recipe: str) -> str:
    problem, drawn = made.sections["problem"], made.sections["data"]
    return _typed(problem["kind"], problem["n"], drawn["count"], problem["dist"], drawn["seed"])


def _typed(kind: str, n: int, count: int, dist: str, seed: int) -> str:
    return f"cnf data generate {kind} --n {n} --count {count} --dist {dist} --seed {seed}"


STAGE = Stage("data", VERSION, run, _title, _command)
