"""Make a data set of adversarial instances, each beside the clean one it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cnf_cli.pipeline.stage import Stage, Task
from cnf_cli.recipe import Recipe
from cnf_cli.recipe.sections import AttackSection, Section
from cnf_cli.stages import data, pretrain
from cnf_cli.stages.job import Job, Result, derived_seed

if TYPE_CHECKING:
    import torch

    from cnf_cli.problems.base import BaseProblem
    from cnf_cli.problems.instances import Instances
    from cnf_cli.store import Manifest

VERSION = 1
CHUNK = 10
"""Instances attacked together, as for the published test sets: the released step size is divided by it."""
OPTIMUM_ROWS = 100
"""Instances whose optimum is asked of a solver before and after the attack."""


class AttackSetSection(Section):
    """Which models are attacked, and how many instances are kept."""

    white_box: bool = Field(False, description="attack every model, then draw `count` of the M x count instances")


def task(
    recipe: Recipe,
    policy: Task | Manifest | None = None,
    clean: Task | Manifest | None = None,
    *,
    white_box: bool = False,
) -> Task:
    """Attack `policy` (the recipe's pretrained one by default) on `clean` (fresh instances by default).

    Fixed sets attack the pretrained model; white-box sets attack each model of the ensemble that is then measured.
    """
    policy = policy if policy is not None else pretrain.task(recipe)
    clean = clean if clean is not None else data.task(recipe.problem, recipe.attack.count, recipe.attack.seed)
    attack = for_sets(recipe.attack)
    sections = {"problem": recipe.problem, "attack": attack, "set": AttackSetSection(white_box=white_box)}
    name = "white-box" if white_box else "attack"
    command = f"cnf attack {recipe.source}" + (" --white-box" if white_box else "")
    return Task(STAGE, sections, {"policy": policy, "clean": clean}, alias=f"{recipe.name}/{name}", command=command)


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
    from cnf_cli.formats import dataset
    from cnf_cli.stages.models import load_models
    from cnf_cli.stages.setup import set_up

    section, white_box = job.section("attack"), job.section("set").white_box
    source = dataset.load(job.inputs["clean"].path("data.h5"))
    with set_up(job.runtime) as setup:
        ensemble = load_models(job.inputs["policy"], setup.device).biased(section.distance_bias)
        attack = plugins.create("attacks", section, ensemble.problem, setup.engine)
        clean = ensemble.problem.from_block(source.blocks[0])[: section.count]
        groups = [[model] for model in ensemble.policies] if white_box else [ensemble.policies]
        made, stats = attack_all(job, attack, groups, clean, section.seed)
        job.provenance["engine"] = setup.engine.name
    rows = torch.arange(len(clean) * len(groups))
    if len(groups) > 1:
        rng = torch.Generator().manual_seed(derived_seed(section.seed, "white-box sample"))
        rows = torch.randperm(len(rows), generator=rng)[: len(clean)].sort().values
    stats = {name: value[rows] for name, value in stats.items()}
    origin = rows % len(clean)
    extra: dict[str, Any] = {name: value.numpy() for name, value in stats.items()}
    extra |= {"clean_row": origin.numpy(), "model": (rows // len(clean)).numpy()}
    before = ensemble.problem.to_block(clean[origin])
    extra |= {f"clean_{k}": getattr(before, k) for k in ("xy", "demand", "matrix") if getattr(before, k) is not None}
    block = ensemble.problem.to_block(made[rows], extra=extra)
    attrs = {"generator": f"attack {section.kind}", "seed": section.seed, "white_box": int(white_box)}
    dataset.save(job.work / "data.h5", dataset.Dataset(source.problem, (block,), attrs=attrs))
    health = {**checks(stats), **_optimum_change(job, ensemble.problem, clean[origin], made[rows])}
    return Result({"data.h5": job.work / "data.h5"}, {"problem": source.problem, **health})


def _optimum_change(job: Job, problem: BaseProblem, clean: Instances, hard: Instances) -> dict[str, Any]:
    """How the best possible cost changed, on the first instances, where a quick solver is installed.

    It tells "harder" from "different": an attack that moves the optimum far has made another map.
    """
    from cnf_cli.stages.reference import reference_costs

    few = slice(0, OPTIMUM_ROWS)
    before, after = (reference_costs(problem, inst[few].to("cpu"), job) for inst in (clean, hard))
    if before is None or after is None:
        return {}
    change = 100 * (after / before - 1)
    return {"optimum_change_percent": float(change.mean()), "optimum_change_rows": len(change)}


def attack_all(
    job: Job, attack: Any, groups: Sequence[Sequence[Any]], clean: Instances, seed: int
) -> tuple[Instances, dict[str, torch.Tensor]]:
    """Every clean instance against every group of models, ten at a time; finished tens survive an interruption."""
    import torch

    from cnf_cli.problems.instances import Instances, concatenate
    from cnf_cli.stages.state import save_sealed, sealed_part

    parts, stats = [], []
    total = len(clean) * len(groups)
    with job.bars.bar("attacking", total, "instances") as bar:
        for g, policies in enumerate(groups):
            steps = attack.draw(len(clean), torch.Generator().manual_seed(derived_seed(seed, "attack steps", g)))
            for low in range(0, len(clean), CHUNK):
                kept = job.work / f"part-{g}-{low}.safetensors"
                if (part := sealed_part(kept)) is None:
                    rng = torch.Generator().manual_seed(derived_seed(seed, "attack", g, low))
                    few = clean[low : low + CHUNK].to(_device(policies))
                    attacked = attack(policies, few, rng=rng, step=steps[low : low + CHUNK])
                    fields = {f"inst.{k}": v.cpu() for k, v in vars(attacked.instances).items() if v is not None}
                    numbers = {f"stat.{k}": v.float().cpu() for k, v in attacked.stats.items()}
                    part = {**fields, **numbers}
                    save_sealed(kept, part, {"kind": "part"})
                parts.append(Instances(**{k[5:]: v for k, v in part.items() if k.startswith("inst.")}))
                stats.append({k[5:]: v for k, v in part.items() if k.startswith("stat.")})
                bar.advance(len(parts[-1]))
                job.pause_point()
    return concatenate(parts), {name: torch.cat([s[name] for s in stats]) for name in stats[0]}


def _device(policies: Sequence[Any]) -> torch.device:
    device: torch.device = next(policies[0].parameters()).device
    return device


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
