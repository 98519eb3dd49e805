"""`cnf demo`: the whole story on one small recipe, from drawing instances to the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import Launch, Plan, Sets

if TYPE_CHECKING:
    from cnf_cli.pipeline.runner import Runner
    from cnf_cli.pipeline.stage import Task

RECIPE = Path("recipes") / "demo.toml"


def register(app: typer.Typer) -> None:
    """Add `cnf demo`."""
    command(app, "demo", rich_help_panel="Looking")(demo)


def demo(
    ctx: Context,
    recipe: Annotated[Path, typer.Option("--recipe", help="Another recipe to run from end to end.")] = RECIPE,
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.", dir_okay=False)] = Path("report.html"),
    set_: Sets = None,
    plan: Plan = False,
    force: Annotated[bool, typer.Option("--force", help="Replace another file that is there.")] = False,
) -> None:
    """Train a small solver, attack it, harden it, measure it against a real solver, and write a report about it."""
    from cnf_cli.cli.visualize import copy_page, evaluation_task, make_report
    from cnf_cli.recipe.load import load_recipe

    chosen = load_recipe(recipe, set_ or ())
    launch = Launch(ctx, chosen.runtime, plan=plan)
    task = evaluation_task(chosen)
    if plan:
        launch.run(task)
        return
    started = time.monotonic()
    with _watched(ctx, launch, task) as runner:
        measured = runner.run(task)
        page = make_report(launch, [measured], chosen.visualize.count, chosen, runner)
    path = copy_page(ctx, page, out, force=force)
    spent = time.monotonic() - started
    ctx.say(f"\n{page.checks['headline']}")
    ctx.say(f"The report, after {spent:.0f} s, to open in a browser:")
    told = {"id": page.key, "path": str(path), "headline": page.checks["headline"], "seconds": round(spent, 1)}
    ctx.emit(told, str(path))


@contextmanager
def _watched(ctx: Context, launch: Launch, task: Task) -> Iterator[Runner]:
    """A runner with a live overview on a terminal, and with lines elsewhere."""
    runner = launch.runner()
    if ctx.quiet or not ctx.console.is_terminal:
        runner.on_step = launch.note
        yield runner
        return
    from cnf_cli import plots
    from cnf_cli.cli.overview import Line, Overview, lines_of

    figures = Line("visualize", "draw the figures", parts=len(plots.kinds()) + 1)
    lines = [*lines_of(task), figures, Line("report", "write the report")]
    with Overview(ctx.console, lines) as overview:
        runner.bars, runner.on_step = overview, overview.step
        yield runner
