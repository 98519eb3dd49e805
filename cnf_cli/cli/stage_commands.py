"""`cnf pretrain`: the stages of an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import Alias, Force, Launch, Nodes, Plan, Sets, Target, recipe_for

if TYPE_CHECKING:
    from cnf_cli.store import Manifest

PANEL = "Stages"
Init = Annotated[
    str | None, typer.Option("--init", help="Start from this policy artifact's weights.", autocompletion=complete.aliases)
]


def register(app: typer.Typer) -> None:
    """Add the stage commands."""
    command(app, "pretrain", rich_help_panel=PANEL)(pretrain)


def artifact(ctx: Context, text: str | None) -> Manifest | None:
    """The artifact a user names, if one is named."""
    from cnf_cli.errors import ArtifactError

    if text is None:
        return None
    key = ctx.store.resolve(text)
    found = ctx.store.find(key)
    if found is None:
        raise ArtifactError(f"artifact {key[:12]} is damaged", hint="`cnf verify`, then run the command that made it again.")
    return found


def pretrain(
    ctx: Context,
    target: Target,
    n: Nodes = None,
    set_: Sets = None,
    init: Init = None,
    validate: Annotated[str | None, typer.Option(help="Data artifact to watch the training on.")] = None,
    plan: Plan = False,
    force: Force = False,
    alias: Alias = None,
) -> None:
    """Train a policy from scratch on clean instances; interrupted runs continue when the command is repeated."""
    from cnf_cli.stages import pretrain as stage

    recipe = recipe_for(target, n, set_)
    task = stage.task(recipe, artifact(ctx, init), artifact(ctx, validate))
    Launch(ctx, recipe.runtime, plan=plan, force=force, alias=alias).run(task)
