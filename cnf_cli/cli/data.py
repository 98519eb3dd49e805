"""`cnf data generate|show|export`, `cnf import`, `cnf solve`: instances in and out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import Alias, Aug, Bias, Force, Launch, Plan, Sets, bias_set, recipe_for

if TYPE_CHECKING:
    from cnf_cli.formats.dataset import Dataset

PANEL = "Data"
Id = Annotated[str, typer.Argument(help="Data artifact: id, prefix or alias.", autocompletion=complete.aliases)]
Files = Annotated[list[Path], typer.Argument(help="Files or folders.", exists=False)]
Problem = Annotated[str | None, typer.Option(help="Which problem, where the files leave it open.")]
Capacity = Annotated[float | None, typer.Option(help="Vehicle capacity, for CSV files with demands.")]


def register(app: typer.Typer) -> None:
    """Add the data commands."""
    group = typer.Typer(no_args_is_help=True, help="Generate, look at and export data sets.")
    command(group, "generate")(generate)
    command(group, "show")(show)
    command(group, "export")(export)
    app.add_typer(group, name="data", rich_help_panel=PANEL)
    command(app, "import", rich_help_panel=PANEL)(import_)
    command(app, "solve", rich_help_panel=PANEL)(solve)


def generate(
    ctx: Context,
    problem: Annotated[str, typer.Argument(help="Problem plugin, or a recipe file.", autocompletion=complete.targets)],
    n: Annotated[int, typer.Option("--n", help="Nodes to visit.", min=2)] = 100,
    count: Annotated[int, typer.Option(help="Instances.", min=1)] = 1000,
    dist: Annotated[str, typer.Option(help="uniform, rotation, explosion, gaussian_mixture.")] = "uniform",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal data sets.", min=0)] = 4321,
    set_: Sets = None,
    plan: Plan = False,
    force: Force = False,
    alias: Alias = None,
) -> None:
    """Draw a data set of fresh instances."""
    from cnf_cli.stages import data as stage

    recipe = recipe_for(problem, n, [f"problem.dist={dist}", *(set_ or ())])
    name = f"data/{recipe.problem.kind}{recipe.problem.n}-{recipe.problem.dist}-{seed}"
    task = stage.task(recipe.problem, count, seed, alias=name.replace("_", "-"))
    Launch(ctx, recipe.runtime, plan=plan, force=force, alias=alias).run(task)


def open_data(ctx: Context, artifact: str) -> tuple[str, Dataset]:
    """(key, data set) of a data artifact."""
    from cnf_cli.errors import ArtifactError
    from cnf_cli.formats import dataset

    key = ctx.resolve(artifact)
    manifest = ctx.store.find(key)
    if manifest is not None and "data.h5" not in manifest.outputs:
        raise ArtifactError(f"artifact {key[:12]} ({manifest.stage}) is not a data set", hint="`cnf ls --stage data`")
    return key, dataset.load(ctx.store.open(key, "data.h5"))


def show(ctx: Context, artifact: Id) -> None:
    """Counts, ranges and references of a data set."""
    from cnf_cli.formats.summary import summarise

    key, found = open_data(ctx, artifact)
    facts = summarise(found)
    ctx.emit({"id": key, **facts})
    blocks = facts.pop("blocks")
    ctx.table(("what", "value"), [(name, str(value)) for name, value in facts.items()])
    if not ctx.json:
        ctx.write("")
    ctx.table(tuple(blocks[0]), [tuple(block.values()) for block in blocks[:40]])
    if len(blocks) > 40:
        ctx.say(f"and {len(blocks) - 40} more sizes; --json prints all")


def export(
    ctx: Context,
    artifact: Id,
    file: Annotated[Path, typer.Argument(help="FILE.h5 for all, .csv or .tsp/.vrp/.atsp for one instance.")],
    row: Annotated[int, typer.Option(help="Which instance, for formats that hold one.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a data set, or one of its instances, to a file other tools read."""
    from cnf_cli.errors import DataError
    from cnf_cli.formats import dataset
    from cnf_cli.formats.export import write
    from cnf_cli.formats.item import items_of
    from cnf_cli.regular_files import refuse_taken

    key, found = open_data(ctx, artifact)
    refuse_taken([file], force=force)
    if file.suffix in (".h5", ".hdf5"):
        dataset.save(file, found)
    else:
        items = items_of(found)
        if row >= len(items):
            raise DataError(
                f"there is no instance {row}: the data set has {len(items)}", hint=f"--row 0..{len(items) - 1}"
            )
        write(file, items[row])
    ctx.emit({"id": key, "file": str(file)}, str(file))


def import_(
    ctx: Context,
    files: Files,
    alias: Alias = None,
    solutions: Annotated[Path | None, typer.Option(help="Reference tours for these instances.")] = None,
    problem: Problem = None,
    capacity: Capacity = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of a checkpoint of unusual width.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="Norm of a checkpoint that does not tell it: instance, layer or batch.")
    ] = None,
    one_hot_seeds: Annotated[
        int | None, typer.Option(min=1, help="One-hot seeds that a MatNet checkpoint was trained with.")
    ] = None,
    plan: Plan = False,
    force: Force = False,
) -> None:
    """Take in data sets (.pkl, TSPLIB, VRPLIB, CSV, HDF5), checkpoints of POMO and MatNet (.pt), exported artifacts."""
    from cnf_cli.errors import DataError
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.stages import imported as stage
    from cnf_cli.store.bundle import is_export

    if len(files) == 1 and is_export(files[0]):
        return _take_in(ctx, files[0], alias, plan=plan, force=force)
    if norm not in (None, "instance", "layer", "batch"):
        raise DataError(f"'{norm}' is no norm of a policy", hint="--norm instance, --norm layer or --norm batch")
    task = stage.task(
        files,
        solutions=solutions,
        problem=problem,
        capacity=capacity,
        heads=heads,
        norm=norm,
        one_hot_seeds=one_hot_seeds,
    )
    Launch(ctx, RuntimeSection(), plan=plan, force=force, alias=alias).run(task)
    return None


def _take_in(ctx: Context, path: Path, alias: str | None, *, plan: bool, force: bool) -> None:
    """The exported artifact is in this store; its id goes to stdout."""
    from cnf_cli.stages.exported import take_in

    if plan:
        return ctx.emit({"plan": [{"stage": "import", "state": "miss", "file": str(path)}]}, f"{path}: an export")
    made = take_in(ctx.store, path, replace=force)
    if alias:
        ctx.store.tag(alias, made.key)
    ctx.say(f"{made.stage} {made.key[:12]}, with its history, as its sender's manifest tells it")
    return ctx.emit({"id": made.key, "stage": made.stage, "checks": made.checks}, made.key)


def solve(
    ctx: Context,
    files: Files,
    policy: Annotated[
        str | None,
        typer.Option(
            "--with", help="Policy artifact or zoo/NAME; default: the one that fits.", autocompletion=complete.aliases
        ),
    ] = None,
    aug: Aug = None,
    distance_bias: Bias = None,
    write_sol: Annotated[Path | None, typer.Option("--write-sol", help="Folder for .tour and .sol files.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite .tour and .sol files that are there.")] = False,
    problem: Problem = None,
    capacity: Capacity = None,
    device: Annotated[str, typer.Option(envvar="CNF_DEVICE", help="auto, cpu, cuda.")] = "auto",
    set_: Sets = None,
) -> None:
    """Solve your own files with a policy: one row per instance, cost by the file's own distance rule."""
    from cnf_cli.cli.stage_commands import artifact
    from cnf_cli.stages.solve import solve_files

    sets = [f"runtime.device={device}", *bias_set("evaluate", distance_bias), *(set_ or ())]
    recipe = recipe_for("tsp", None, sets)
    rows: list[dict[str, Any]] = []
    given = artifact(ctx, policy)
    asked = (ctx.store, files, given, recipe.runtime, ctx.bars, aug, write_sol)
    bias = recipe.evaluate.distance_bias
    for row in solve_files(*asked, problem=problem, capacity=capacity, note=ctx.note, distance_bias=bias, force=force):
        rows.append(row)
    ctx.emit({"rows": rows})
    shown = [
        (r["name"], r["nodes"], r["cost"], r["reference"], r["gap_percent"], r["seconds"], r["file"] or "")
        for r in rows
    ]
    ctx.table(("instance", "nodes", "cost", "best known", "gap %", "seconds", "written"), shown)
