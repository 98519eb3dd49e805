"""Make a data set of adversarial instances, each beside the clean one it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from cnf_cli.errors import DataError
from cnf_cli.pipeline.job import Job, Result, derived_seed
from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe import Recipe
from cnf_cli.recipe.sections import AttackSection, Section
from cnf_cli.stages import data, pretrain

if TYPE_CHECKING:
    import torch

    from cnf_cli.formats.dataset import Array, Block
    from cnf_cli.problems.base import BaseProblem
    from cnf_cli.problems.scaled import Scaled
    from cnf_cli.store import Manifest

VERSION = 1
OPTIMUM_ROWS = 100
"""Instances whose optimum is asked of a solver before and after the attack."""


class AttackSetSection(Section):
    """Which models are attacked, and how many instances are kept."""

    added: ClassVar[tuple[str, ...]] = ("own_units", "own_demands")
    white_box: bool = Field(False, description="attack every model, then draw `count` of the M x count instances")
    own_units: bool = Field(False, description="the clean instances are a user's: all sizes, scaled and scaled back")
    own_demands: bool = Field(False, description="demands may be as large as the instance's own, where that is above 9")


def task(
    recipe: Recipe,
    policy: Task | Manifest | None = None,
    clean: Task | Manifest | None = None,
    *,
    white_box: bool = False,
    own_units: bool = False,
) -> Task:
    """Attack `policy` (the recipe's pretrained one by default) on `clean` (fresh instances by default).

    Fixed sets attack the pretrained model; white-box sets attack each model of the ensemble that is then measured.
    `own_units`: `clean` was not drawn by a problem (`data.drawn`); what was made of such data before was unscaled.
    """
    policy = policy if policy is not None else pretrain.task(recipe)
    clean = clean if clean is not None else data.task(recipe.problem, recipe.attack.count, recipe.attack.seed)
    attack = for_sets(recipe.attack)
    sections = {
        "problem": recipe.problem,
        "attack": attack,
        "set": AttackSetSection(
            white_box=white_box, own_units=own_units, own_demands=_own_demands(recipe, own_units=own_units)
        ),
    }
    name = "white-box" if white_box else "attack"
    command = f"cnf attack {recipe.source}" + (" --white-box" if white_box else "")
    return Task(STAGE, sections, {"policy": policy, "clean": clean}, alias=f"{recipe.name}/{name}", command=command)


def _own_demands(recipe: Recipe, *, own_units: bool) -> bool:
    """Whether demands above 9 may be attacked; what was made of such data before kept all that rose to 9."""
    budget, names = getattr(recipe.attack, "budget", None), getattr(recipe.attack, "attributes", ())
    changes = (budget is not None and budget.demand) or "demand" in names
    changes = changes or (getattr(recipe.attack, "mode", "") == "paper" and not names)
    drawn = getattr(recipe.problem, "demand_max", 0) > 9 or getattr(recipe.problem, "demands", "") == "varied"
    return bool(changes) and hasattr(recipe.problem, "demand_max") and (own_units or drawn)


def for_sets(section: AttackSection) -> AttackSection:
    """The attack as data sets are made with it: step sizes low..high in order over the set, as for the published test
    sets (ten instances for each of 1..100), where training draws one per batch."""
    if getattr(section, "step_draw", None) != "batch":
        return section
    return section.model_copy(update={"step_draw": "grid"})


def run(job: Job) -> Result:
    """Writes data.h5: the adversarial instances, with clean_xy (clean_demand) and the attack's numbers beside them."""
    import torch

    from cnf_cli import plugins
    from cnf_cli.attacks.base import checks
    from cnf_cli.evaluation.answers import first_of
    from cnf_cli.formats import dataset
    from cnf_cli.stages.attacked import attack_all
    from cnf_cli.training.machine import set_up
    from cnf_cli.training.stored_policies import load_models

    section, white_box = job.section("attack"), job.section("set").white_box
    source = dataset.load(job.inputs["clean"].path("data.h5"))
    with set_up(job.runtime) as setup:
        loaded = load_models(job.inputs["policy"], setup.device)
        job.provenance["bytes_depend_on"] = setup.steady(loaded.policies[0])
        ensemble = loaded.biased(section.distance_bias)
        attack = plugins.create("attacks", section, ensemble.problem, setup.engine)
        clean = ensemble.problem.scaled(first_of(source, section.count).blocks)
        _refuse_drawings(ensemble.problem, clean)
        groups = [[model] for model in ensemble.policies] if white_box else [ensemble.policies]
        made = attack_all(job, attack, groups, [one.instances for one in clean], section.seed)
        job.provenance["engine"] = setup.engine.name
    picked = _picked([len(one) for one in clean], len(groups), section.seed)
    pairs, blocks, stats = [], [], []
    for one, (hard, numbers), (model, row, first) in zip(clean, made, picked, strict=True):
        if not len(row):  # none of this size is in the white-box sample
            continue
        told = _told(one, {name: value[model * len(one) + row] for name, value in numbers.items()}, row)
        extra = {
            **told,
            **{f"clean_{k}": v for k, v in one.clean(row).items()},
            "clean_row": row + first,
            "model": model,
        }
        blocks.append(one.back(hard[torch.from_numpy(model * len(one) + row)], row, extra))
        pairs.append((one.back(one.instances[torch.from_numpy(row)], row), blocks[-1]))
        stats.append(told)
    attrs = {"generator": f"attack {section.kind}", "seed": section.seed, "white_box": int(white_box)}
    dataset.save(job.work / "data.h5", dataset.Dataset(source.problem, tuple(blocks), attrs=attrs))
    health = {**checks(_joined(stats)), **_optimum_change(job, ensemble.problem, pairs)}
    return Result({"data.h5": job.work / "data.h5"}, {"problem": source.problem, **health})


def _refuse_drawings(problem: BaseProblem, clean: Sequence[Scaled]) -> None:
    """Places that only draw a matrix of costs cannot be attacked: no cost follows from them."""
    names = [one.block.names[0] or "an instance" for one in clean if one.block.matrix is not None]
    if names and "matrix" not in problem.movable:
        raise DataError(
            f"{', '.join(names)}: the costs are a matrix, so moving the nodes of its drawing changes nothing",
            hint="leave such files out; `cnf list attacks` says which attacks change matrices, of ATSP instances",
        )


def _picked(sizes: Sequence[int], groups: int, seed: int) -> Iterator[tuple[Array, Array, int]]:
    """(model, row of the block, number of its first instance) of what is kept of each block.

    All of it, or of a white-box set with several models a sample as large as the clean set.
    """
    import numpy as np
    import torch

    total = sum(sizes)
    kept = torch.arange(total * groups)
    if groups > 1:
        rng = torch.Generator().manual_seed(derived_seed(seed, "white-box sample"))
        kept = torch.randperm(len(kept), generator=rng)[:total].sort().values
    model, instance = np.divmod(kept.numpy(), total)
    first = 0
    for size in sizes:
        here = (instance >= first) & (instance < first + size)
        yield model[here], instance[here] - first, first
        first += size


def _told(one: Scaled, numbers: Mapping[str, torch.Tensor], row: Array) -> dict[str, Array]:
    """The attack's numbers, costs in the user's units of length; moves stay in widths of the map the policy sees."""
    width = one.width[row, 0, 0].astype("f4")
    return {k: v.numpy() * width if k.startswith("cost_") else v.numpy() for k, v in numbers.items()}


def _joined(stats: Sequence[Mapping[str, Array]]) -> dict[str, torch.Tensor]:
    import numpy as np
    import torch

    return {name: torch.from_numpy(np.concatenate([one[name] for one in stats])) for name in stats[0]}


def _optimum_change(job: Job, problem: BaseProblem, pairs: Sequence[tuple[Block, Block]]) -> dict[str, Any]:
    """How the best possible cost changed, on the first instances, where a quick solver is installed.

    It tells "harder" from "different": an attack that moves the optimum far has made another map.
    """
    from cnf_cli.evaluation.answers import first_of
    from cnf_cli.evaluation.references import reference_costs
    from cnf_cli.formats.dataset import Dataset

    both = [first_of(Dataset(problem.kind, blocks), OPTIMUM_ROWS).blocks for blocks in zip(*pairs, strict=True)]
    before, after = (reference_costs(problem, blocks, job) for blocks in both)
    if before is None or after is None or not bool((before > 0).any()):
        return {}
    change = 100 * (after / before - 1)[before > 0]
    return {"optimum_change_percent": float(change.mean()), "optimum_change_rows": len(change)}


def _white_box(task: Task) -> bool:
    return bool(task.dumped()["set"]["white_box"])


def _command(made: Manifest, recipe: str) -> str:
    if not recipe:
        return ""
    given = f" --with {made.inputs['policy'].key[:12]} --data {made.inputs['clean'].key[:12]}"
    return f"cnf attack {recipe}{given}" + (" --white-box" if made.sections["set"]["white_box"] else "")


STAGE = Stage(
    "attack",
    VERSION,
    run,
    title=lambda task: "attack every hardened model" if _white_box(task) else "attack the pretrained policy",
    command=_command,
    labelled=lambda task: "the newly attacked ones" if _white_box(task) else "the attacked instances",
)
