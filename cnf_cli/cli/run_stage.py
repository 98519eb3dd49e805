"""What all stage commands share: --plan, --force, --no-deps, the table of steps, and the artifact's id on stdout."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context

if TYPE_CHECKING:
    from cnf_cli.pipeline.runner import Runner, Step
    from cnf_cli.pipeline.stage import Task
    from cnf_cli.recipe import Recipe
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.store import Manifest

RUN = "Running"
Target = Annotated[
    str, typer.Argument(help="A recipe file, or a problem: tsp, cvrp, atsp.", autocompletion=complete.targets)
]
Nodes = Annotated[int | None, typer.Option("--n", help="Nodes to visit (customers, with a depot).", min=2)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.models=5.")
]
Plan = Annotated[bool, typer.Option("--plan", help="Say what would run, and why; run nothing.", rich_help_panel=RUN)]
Force = Annotated[bool, typer.Option("--force", help="Run again even if the result is there.", rich_help_panel=RUN)]
NoDeps = Annotated[bool, typer.Option("--no-deps", help="Refuse to run missing earlier stages.", rich_help_panel=RUN)]
Alias = Annotated[str | None, typer.Option("--as", help="Also give the result this alias.", rich_help_panel=RUN)]
Aug = Annotated[
    int | None,
    typer.Option(
        "--aug", help="Copies of each instance; the best counts: 1 to 8 (atsp 1 to 128), default 8 (atsp 16)."
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="Policy artifact: id, prefix, alias or zoo/NAME.", autocompletion=complete.aliases),
]

Bias = Annotated[
    str | None,
    typer.Option(
        "--distance-bias",
        metavar="RATE",
        help="Prefer near nodes by this rate, or auto: by size; of several, 0.1,0.3, copies take one each in turn.",
    ),
]


def bias_set(table: str, given: str | None) -> list[str]:
    """`--distance-bias` as an override of that table's key."""
    if given is None:
        return []
    return [f"{table}.distance_bias={given if given.strip().isalpha() else f'[{given}]'}"]


def recipe_for(target: str, n: int | None, overrides: list[str] | None) -> Recipe:
    """The recipe in a file, or the defaults for a problem; `--n` and `--set` on top."""
    from cnf_cli import plugins
    from cnf_cli.errors import RecipeError, did_you_mean
    from cnf_cli.recipe.load import finish, load_recipe

    sets = ([f"problem.n={n}"] if n is not None else []) + list(overrides or ())
    if target in plugins.kinds("problems"):
        size = n if n is not None else 100
        return finish(f"{target}{size}", {"problem": {"kind": target, "n": size}}, {}, sets, f"{target} --n {size}")
    if not target.endswith(".toml") and not Path(target).exists():
        near = did_you_mean(target, plugins.kinds("problems"))
        hint = (
            f"did you mean '{near}'?"
            if near
            else f"problems: {', '.join(plugins.kinds('problems'))}; recipes end in .toml"
        )
        raise RecipeError(f"'{target}' is neither a problem nor a recipe file", hint=hint)
    return load_recipe(Path(target), sets)


@dataclass
class Launch:
    """Runs or plans one task for a command, and prints what a user wants to see of it."""

    ctx: Context
    runtime: RuntimeSection
    plan: bool = False
    force: bool = False
    deps: bool = True
    alias: str | None = None

    def run(self, task: Task) -> Manifest | None:
        """The artifact; None when only the plan was asked for. The artifact's id, or a JSON object, goes to stdout."""
        if self.plan:
            self._show(self.runner().plan(task, force=self.force))
            return None
        manifest, hit = self.make(task)
        told = {"id": manifest.key, "stage": manifest.stage, "hit": hit, "checks": manifest.checks}
        self.ctx.emit(told, manifest.key)
        return manifest

    def make(self, task: Task) -> tuple[Manifest, bool]:
        """The artifact under its alias, and whether the store had it; steps and warnings are told on stderr."""
        from cnf_cli.pipeline import ranks

        runner = self.runner()
        steps: list[Step] = []

        def note(step: Step) -> None:
            steps.append(step)
            self.note(step)

        runner.on_step = note
        manifest = runner.run(task, force=self.force, deps=self.deps)
        ranks.leave()
        if self.alias and ranks.rank() == 0:
            self.ctx.store.tag(self.alias, manifest.key)
        return manifest, steps[-1].state == "hit"

    def runner(self) -> Runner:
        """A runner against this command's store, with its progress; warnings of all that it makes or finds are told."""
        from cnf_cli.pipeline.runner import Runner

        command = ("cnf", *sys.argv[1:])
        runner = Runner(self.ctx.store, self.runtime, self.ctx.bars, command, wait=self.ctx.wait)
        runner.on_made = self._warn
        return runner

    def _warn(self, manifest: Manifest) -> None:
        for warning in manifest.checks.get("warnings", ()):
            self.ctx.note(f"warning: {warning} ({manifest.stage} {manifest.key[:12]})")

    def note(self, step: Step) -> None:
        """One line for a step that begins, or whose result the store has."""
        from cnf_cli.pipeline.runner import NEW

        why = "" if step.why in ("", NEW) else f" ({step.why})"
        what = "found in the store" if step.state == "hit" else f"running{why}"
        self.ctx.say(f"{step.stage}: {what}  {(step.key or '')[:12]}")

    def _show(self, steps: list[Step]) -> None:
        rows = [(s.stage, s.state, (s.key or "")[:12], s.why) for s in steps]
        self.ctx.emit({"plan": [{"stage": s.stage, "state": s.state, "key": s.key, "why": s.why} for s in steps]})
        self.ctx.table(("stage", "state", "key", "why"), rows)
