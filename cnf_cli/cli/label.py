"""`cnf label` and `cnf solvers`: reference costs by real solvers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import Alias, Force, Launch, Plan

PANEL = "Measuring"


def register(app: typer.Typer) -> None:
    """Add the commands about reference solvers."""
    command(app, "label", rich_help_panel=PANEL)(label)
    command(app, "solvers", rich_help_panel=PANEL)(solvers)


def label(
    ctx: Context,
    data: Annotated[str, typer.Argument(help="Data artifact: id, prefix or alias.", autocompletion=complete.aliases)],
    solver: Annotated[
        str | None, typer.Option(help="Solver plugin, or a module of your own; default: the best installed.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="KEY=VALUE", help="A setting of the solver: iterations=20000."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Solve only instances without a reference.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds per instance before another solver is asked.")] = 600.0,
    jobs: Annotated[int, typer.Option(help="Instances solved at once; 0 = one per core.", min=0)] = 0,
    executor: Annotated[str, typer.Option(help="Who runs them: processes, dask, ray.")] = "processes",
    address: Annotated[str | None, typer.Option(help="Scheduler of a running Dask or Ray cluster.")] = None,
    plan: Plan = False,
    force: Force = False,
    alias: Alias = None,
) -> None:
    """Add reference costs, tours and proof flags to a data set; interrupted runs continue when repeated."""
    from cnf_cli.cli.stage_commands import artifact
    from cnf_cli.errors import ArtifactError, RecipeError
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.solvers.run import default_solver, require
    from cnf_cli.stages import label as stage

    manifest = artifact(ctx, data)
    assert manifest is not None
    if "data.h5" not in manifest.outputs:
        hint = "`cnf ls` lists artifacts; `cnf data` and `cnf import` make data sets."
        raise ArtifactError(f"artifact {manifest.key[:12]} ({manifest.stage}) is not a data set", hint=hint)
    if executor not in ("processes", "dask", "ray"):
        raise RecipeError(f"no executor '{executor}'", hint="one of processes, dask, ray")
    problem, nodes = problem_of(ctx, manifest.key)
    solver = solver or default_solver(problem, nodes)
    require(solver, problem)
    local = {"jobs": jobs, "executor": executor, "address": address}
    given = settings(solver, param or [])
    task = stage.task(manifest, solver, given, keep=keep, timeout_seconds=timeout, local=local)
    Launch(ctx, RuntimeSection(), plan=plan, force=force, alias=alias).run(task)


def problem_of(ctx: Context, key: str) -> tuple[str, int]:
    """The problem of a data artifact and the nodes of its largest instance."""
    from cnf_cli.formats import dataset

    found = dataset.load(ctx.store.open(key, "data.h5"))
    return found.problem, max(block.nodes for block in found.blocks)


def settings(solver: str, pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs as the solver's checked settings."""
    import json

    from pydantic import ValidationError

    from cnf_cli.errors import RecipeError
    from cnf_cli.solvers.run import module_of

    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise RecipeError(f"--param takes KEY=VALUE, not '{pair}'", hint="for example: --param iterations=20000")
        try:
            given[key.strip()] = json.loads(text)
        except ValueError:
            given[key.strip()] = text
    try:
        module_of(solver).Params(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        hint = f"`cnf list solvers {solver}` prints every setting."
        raise RecipeError(f"solver {solver}: {where}: {first['msg'].lower()}", hint=hint) from None
    return given


def solvers(ctx: Context) -> None:
    """What solvers there are, which are installed, their licence, and how to get the rest."""
    from cnf_cli.solvers.run import listing

    found = listing()
    ctx.emit({"solvers": [{**vars(s), "problems": list(s.problems), "installed": bool(s.version)} for s in found]})
    rows = [
        (s.kind, ", ".join(s.problems), "yes" if s.exact else "no", s.version or "missing", s.licence, s.summary)
        for s in found
    ]
    ctx.table(("solver", "problems", "exact", "version", "licence", "what it is"), rows)
    for package in dict.fromkeys(s.package for s in found if not s.version):
        ctx.say(f"to get {', '.join(s.kind for s in found if not s.version and s.package == package)}: {package}")
