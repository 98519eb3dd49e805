"""`cnf pretrain`, `cnf attack`, `cnf train-cnf`: the stages of an experiment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.cli.run_stage import Alias, Bias, Force, Launch, NoDeps, Nodes, Plan, Sets, Target, bias_set, recipe_for

if TYPE_CHECKING:
    from cnf_cli.evaluation.plan import Named
    from cnf_cli.evaluation.policy_choice import Choice
    from cnf_cli.pipeline.stage import Task
    from cnf_cli.recipe import Recipe
    from cnf_cli.store import Manifest

PANEL = "Stages"
Init = Annotated[
    str | None,
    typer.Option("--init", help="Start from this policy artifact's weights.", autocompletion=complete.aliases),
]
Policy = Annotated[
    str | None, typer.Option("--with", help="Policy artifact to attack.", autocompletion=complete.aliases)
]
Data = Annotated[
    str | None, typer.Option("--data", help="Data artifact with the clean instances.", autocompletion=complete.aliases)
]


def register(app: typer.Typer) -> None:
    """Add the stage commands."""
    command(app, "pretrain", rich_help_panel=PANEL)(pretrain)
    command(app, "attack", rich_help_panel=PANEL)(attack)
    command(app, "train-cnf", rich_help_panel=PANEL)(train_cnf)


def artifact(ctx: Context, text: str | None) -> Manifest | None:
    """The artifact a user names, if one is named."""
    from cnf_cli.errors import ArtifactError

    if text is None:
        return None
    key = ctx.resolve(text)
    found = ctx.store.find(key)
    if found is None:
        raise ArtifactError(
            f"artifact {key[:12]} is damaged", hint="`cnf verify`, then run the command that made it again."
        )
    return found


def of_user(ctx: Context, data: Manifest | None) -> bool:
    """Whether these are data of a user's own, in units of their own."""
    from cnf_cli.stages.data import drawn

    return data is not None and not drawn(ctx.store, data)


def start(ctx: Context, recipe: Recipe, text: str | None, *, plan: bool = False) -> Task | Manifest | None:
    """The policy a stage starts from: the one named; else the one that stands in, which is said; None for its own."""
    from cnf_cli.evaluation.policy_choice import start_of

    if text is not None:
        return artifact(ctx, text)
    chosen = start_of(recipe, ctx.store)
    return taken(ctx, chosen, plan=plan)[1] if chosen else None


def taken(ctx: Context, chosen: Choice, *, plan: bool = False) -> Named:
    """What was chosen, with its name in tables; the choice is said."""
    from cnf_cli.evaluation.plan import policy_name

    ctx.note(chosen.told)
    if isinstance(chosen.policy, str):
        return f"zoo/{chosen.policy}", entry(ctx, chosen.policy, plan=plan)
    return policy_name(ctx.store, chosen.policy), chosen.policy


def entry(ctx: Context, name: str, *, plan: bool = False) -> Task | Manifest:
    """An entry of the zoo, taken into the store; only as a task when nothing is to be written."""
    from cnf_cli.stages import zoo

    return zoo.task(name) if plan else zoo.take(ctx.store, name, ("cnf", *sys.argv[1:]))


def start_named(ctx: Context, recipe: Recipe, *, plan: bool = False) -> list[Named]:
    """What an evaluation measures where another policy stands in for the recipe's own; else nothing.

    That policy, and what the recipe hardens it into; an ensemble of the user's own, or else the zoo's, where the recipe
    has no [train] table.
    """
    from cnf_cli.evaluation import policy_choice as choice
    from cnf_cli.stages import train_cnf as hardening
    from cnf_cli.zoo.cards import fitting

    chosen = choice.start_of(recipe, ctx.store)
    if chosen is None:
        return []
    first = taken(ctx, chosen, plan=plan)
    kind, n = recipe.problem.kind, recipe.problem.n
    if "train" in recipe.written:
        return [first, (f"{recipe.train.defence}({recipe.train.models})", hardening.task(recipe, first[1]))]
    if (mine := choice.newest_fitting(ctx.store, kind, n, several=True)) is not None:
        return [first, taken(ctx, choice.own(ctx.store, mine, n), plan=plan)]
    several = fitting(kind, n, ensemble=True)
    return [first] if several is None else [first, (f"zoo/{several}", entry(ctx, several, plan=plan))]


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
    watched = artifact(ctx, validate)
    task = stage.task(recipe, artifact(ctx, init), watched, own_units=of_user(ctx, watched))
    Launch(ctx, recipe.runtime, plan=plan, force=force, alias=alias).run(task)


def attack(
    ctx: Context,
    target: Target,
    n: Nodes = None,
    set_: Sets = None,
    policy: Policy = None,
    data: Data = None,
    count: Annotated[int | None, typer.Option(help="Instances to attack.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps.", min=1)] = None,
    white_box: Annotated[
        bool, typer.Option("--white-box", help="Attack every model of the ensemble, and keep a sample.")
    ] = False,
    distance_bias: Bias = None,
    plan: Plan = False,
    force: Force = False,
    no_deps: NoDeps = False,
    alias: Alias = None,
) -> None:
    """Make adversarial instances against a policy, each kept beside the clean one it was made from."""
    from cnf_cli.stages import attack as stage

    sets = [f"attack.count={count}"] * (count is not None) + [f"attack.steps={steps}"] * (steps is not None)
    recipe = recipe_for(target, n, [*sets, *bias_set("attack", distance_bias), *(set_ or ())])
    clean, attacked = artifact(ctx, data), start(ctx, recipe, policy, plan=plan)
    task = stage.task(recipe, attacked, clean, white_box=white_box, own_units=of_user(ctx, clean))
    Launch(ctx, recipe.runtime, plan=plan, force=force, deps=not no_deps, alias=alias).run(task)


def train_cnf(
    ctx: Context,
    target: Target,
    n: Nodes = None,
    set_: Sets = None,
    init: Init = None,
    plan: Plan = False,
    force: Force = False,
    no_deps: NoDeps = False,
    alias: Alias = None,
) -> None:
    """Harden an ensemble of copies of the pretrained policy by the recipe's defence; resumes when repeated."""
    from cnf_cli.stages import train_cnf as stage

    recipe = recipe_for(target, n, set_)
    task = stage.task(recipe, start(ctx, recipe, init, plan=plan))
    Launch(ctx, recipe.runtime, plan=plan, force=force, deps=not no_deps, alias=alias).run(task)
