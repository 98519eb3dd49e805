"""`cnf visualize` and `cnf report`: look at what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import RUN, Launch, NoDeps, Nodes, Plan, Sets, recipe_for

if TYPE_CHECKING:
    from cnf_cli.evaluation.plan import Named
    from cnf_cli.pipeline.runner import Runner
    from cnf_cli.pipeline.stage import Task
    from cnf_cli.recipe import Recipe
    from cnf_cli.store import Manifest

PANEL = "Looking"
Count = Annotated[int | None, typer.Option("--count", help="Instances shown.", min=1, max=64)]
Redraw = Annotated[
    bool,
    typer.Option("--force", help="Draw again, and replace files that are there.", rich_help_panel=RUN),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for copies of the files.", file_okay=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "visualize", rich_help_panel=PANEL)(visualize)
    command(app, "report", rich_help_panel=PANEL)(report)


def visualize(
    ctx: Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(help="KIND ID..., or a recipe for every figure that applies.", autocompletion=complete.targets),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the kinds of figures.")] = False,
    out: Out = None,
    count: Count = None,
    instance: Annotated[
        list[str] | None, typer.Option("--instance", help="Show this instance, by name or number; may be repeated.")
    ] = None,
    n: Nodes = None,
    set_: Sets = None,
    plan: Plan = False,
    force: Redraw = False,
    no_deps: NoDeps = False,
) -> None:
    """Draw figures from artifacts as PNG and SVG; an evaluation's id suffices for all of its story."""
    from cnf_cli import plots
    from cnf_cli.errors import RecipeError

    if list_:
        rows = [(kind, plots.summary(kind)) for kind in plots.kinds()]
        ctx.emit({"figures": [{"kind": kind, "summary": text} for kind, text in rows]})
        return ctx.table(("figure", "what it shows"), rows)
    if not what:
        raise RecipeError("nothing to draw", hint="`cnf visualize KIND ID...` or `cnf visualize RECIPE`; --list")
    if is_target(what):
        recipe = recipe_for(what[0], n, set_)
        launch = Launch(ctx, recipe.runtime, plan=plan, force=force, deps=not no_deps)
        found = evaluation(launch, recipe)
        if found is not None:
            chosen = recipe.visualize.figures or plots.kinds()
            made = figures(launch, chosen, [found], count or recipe.visualize.count, asked=recipe.visualize.figures)
            _deliver(ctx, made, out or Path("figures"), force=force)
        return None
    kind, ids = plots.check(what[0]), what[1:]
    if not ids:
        raise RecipeError(f"{kind} of what?", hint=f"`cnf visualize {kind} ID...`; `cnf ls` lists artifacts")
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.stages import visualize as stage

    launch = Launch(ctx, RuntimeSection(), plan=plan, force=force)
    task = stage.task(kind, _artifacts(ctx, ids), ctx.store, count=count or 4, instances=tuple(instance or ()))
    if plan:
        launch.run(task)
    else:
        _deliver(ctx, {kind: _run(launch, task)}, out or Path("figures"), force=force)
    return None


def report(
    ctx: Context,
    what: Annotated[list[str], typer.Argument(help="Evaluation IDs, or a recipe.", autocompletion=complete.targets)],
    out: Annotated[Path, typer.Option("--out", help="Where the page goes.", dir_okay=False)] = Path("report.html"),
    count: Count = None,
    n: Nodes = None,
    set_: Sets = None,
    plan: Plan = False,
    force: Redraw = False,
    no_deps: NoDeps = False,
) -> None:
    """Write one HTML page that tells the whole story: what was attacked, what broke, what was repaired, by how much."""
    from cnf_cli.recipe.sections import RuntimeSection

    if is_target(what):
        recipe = recipe_for(what[0], n, set_)
        launch = Launch(ctx, recipe.runtime, plan=plan, force=force, deps=not no_deps)
        found = evaluation(launch, recipe)
        if found is None:
            return
        page = make_report(launch, [found], count or recipe.visualize.count, recipe)
    else:
        launch = Launch(ctx, RuntimeSection(), force=force)
        page = make_report(launch, _artifacts(ctx, what), count or 4)
    path = copy_page(ctx, page, out, force=force)
    ctx.emit({"id": page.key, "stage": page.stage, "path": str(path)}, str(path))


def is_target(what: list[str]) -> bool:
    """Whether the user named a recipe or a problem, rather than a figure or artifacts."""
    from cnf_cli import plugins

    return len(what) == 1 and (what[0].endswith(".toml") or what[0] in plugins.kinds("problems"))


def evaluation(launch: Launch, recipe: Recipe) -> Manifest | None:
    """The recipe's evaluation, with everything before it; None when only the plan was asked for."""
    from cnf_cli.cli.stage_commands import start_named

    task = evaluation_task(recipe, start_named(launch.ctx, recipe, plan=launch.plan))
    if launch.plan:
        launch.run(task)
        return None
    # --force draws again; it does not measure again.
    return _run(replace(launch, force=False), task)


def evaluation_task(recipe: Recipe, given: Sequence[Named] = ()) -> Task:
    """What `cnf evaluate RECIPE` runs."""
    from cnf_cli.evaluation.plan import Solvers, for_recipe
    from cnf_cli.stages import evaluate

    sets, policies = for_recipe(recipe, given, Solvers(recipe.evaluate.solver))
    about = recipe.evaluate
    return evaluate.task(
        sets,
        policies,
        (),
        alias=f"{recipe.name}/evaluate",
        command=f"cnf evaluate {recipe.source}",
        augment=about.augment,
        decode=about.decode,
        seed=about.seed,
    )


def figures(
    launch: Launch, kinds: Any, found: list[Manifest], count: int, *, asked: Any = (), runner: Runner | None = None
) -> dict[str, Manifest]:
    """Kind -> artifact for every figure that these artifacts allow; one that was asked for by name must be possible."""
    from cnf_cli.plots._source import NothingToDraw
    from cnf_cli.stages import visualize as stage

    made = {}
    for kind in kinds:
        task = stage.task(kind, found, launch.ctx.store, count=count)
        try:
            made[kind] = _run(launch, task, runner)
        except NothingToDraw as error:
            if kind in asked:
                raise
            launch.ctx.say(f"{kind}: left out, {error.message}")
    return made


def make_report(
    launch: Launch, found: list[Manifest], count: int, recipe: Recipe | None = None, runner: Runner | None = None
) -> Manifest:
    """The page about these artifacts, with its figures."""
    from cnf_cli import plots
    from cnf_cli.stages import report as stage

    drawn = figures(launch, plots.kinds(), found, count, runner=runner)
    hero = figures(launch, ("tours",), found, 1, runner=runner)
    if "tours" in hero:
        drawn["hero"] = hero["tours"]
    alias = f"{recipe.name}/report" if recipe else None
    task = stage.task(found, drawn, launch.ctx.store, recipe.source if recipe else "", alias=alias)
    return _run(launch, task, runner)


def copy_page(ctx: Context, page: Manifest, out: Path, *, force: bool = False) -> Path:
    """A copy of the page; another file that is there stays unless the user says otherwise."""
    _copy(ctx, {out: (page, "report.html")}, force=force)
    return out.absolute()


def _copy(ctx: Context, wanted: Mapping[Path, tuple[Manifest, str]], *, force: bool) -> None:
    """Copies of artifacts' files are at these paths, all or none; a file that holds just that may stay."""
    from cnf_cli.regular_files import explained, refuse_taken, write_atomic

    data = {path: ctx.store.open(made.key, name).read_bytes() for path, (made, name) in wanted.items()}
    new = [path for path, content in data.items() if not _holds(path, content)]
    refuse_taken(new, force=force)
    for path in new:
        with explained(path.parent, 0):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data[path])


def _holds(path: Path, content: bytes) -> bool:
    from cnf_cli.regular_files import read

    try:
        return read(path, len(content)) == content
    except OSError:
        return False


def _run(launch: Launch, task: Task, runner: Runner | None = None) -> Manifest:
    """The artifact, without printing its id: the commands here print paths."""
    if runner is None:
        runner = launch.runner()
        runner.on_step = launch.note
    return runner.run(task, force=launch.force, deps=launch.deps)


def _artifacts(ctx: Context, ids: list[str]) -> list[Manifest]:
    from cnf_cli.cli.stage_commands import artifact

    return [found for text in ids if (found := artifact(ctx, text)) is not None]


def _deliver(ctx: Context, made: dict[str, Manifest], folder: Path, *, force: bool) -> None:
    """Copies of all pictures are in the folder; their paths go to stdout."""
    pictures = [(manifest, f"{kind}.{end}") for kind, manifest in made.items() for end in ("png", "svg")]
    _copy(ctx, {folder / name: (manifest, name) for manifest, name in pictures}, force=force)
    paths = [str(folder / name) for _, name in pictures]
    told = [{"kind": kind, "id": m.key, "title": m.checks.get("title")} for kind, m in made.items()]
    ctx.emit({"figures": told, "files": paths}, "\n".join(paths))
