"""`cnf doctor` and `cnf selftest`: is this installation sound?"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cnf_cli.cli.context import Context, command
from cnf_cli.errors import CheckFailed

PANEL = "System"


def register(app: typer.Typer) -> None:
    """Add the system commands."""
    command(app, "doctor", rich_help_panel=PANEL)(doctor)
    command(app, "selftest", rich_help_panel=PANEL)(selftest)


def doctor(ctx: Context) -> None:
    """Versions, device, engine, store health, optional solvers and how to get the missing ones."""
    from cnf_cli.cli.diagnose import diagnose

    facts = diagnose(ctx.store)
    ctx.emit(facts)
    rows = [(section, name, _shown(value)) for section, inner in facts.items() for name, value in inner.items()]
    ctx.table(("", "what", "state"), rows)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{k}: {v}" for k, v in value.items() if v is not None)
    return "-" if value is None else str(value)


def selftest(
    ctx: Context,
    numbers: Annotated[int, typer.Option(help="How far to count.", min=1)] = 50,
    pause: Annotated[float, typer.Option(help="Seconds between two numbers.", min=0)] = 0.005,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would run, and why; run nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again even if the result is there.")] = False,
) -> None:
    """Run a tiny two-stage pipeline through the store and check its result."""
    from cnf_cli.cli.run_stage import Launch
    from cnf_cli.pipeline.stage import Task
    from cnf_cli.recipe.sections import RuntimeSection
    from cnf_cli.stages import selftest_count, selftest_sum

    section = selftest_count.SelftestSection(numbers=numbers, pause_seconds=pause)
    count = Task(selftest_count.STAGE, {"selftest": section}, alias="selftest/count", command="cnf selftest")
    total = Task(selftest_sum.STAGE, {}, {"numbers": count}, alias="selftest/sum", command="cnf selftest")
    manifest = Launch(ctx, RuntimeSection(), plan=plan, force=force).run(total)
    if manifest is None:
        return
    found = int(ctx.store.open(manifest.key, "sum.txt").read_text())
    if found != numbers * (numbers - 1) // 2:
        raise CheckFailed(f"the sum of the numbers below {numbers} is not {found}", hint="`cnf verify --deep`")
    ctx.say("selftest passed: two stages ran or were found, and the result is right")


def interpreter() -> str:
    """The running Python's version."""
    return sys.version.split()[0]
