"""The command line, assembled: one small file per command group."""

from __future__ import annotations

from typing import Annotated

import typer

import cnf_cli
from cnf_cli.cli import (
    artifacts,
    bench,
    data,
    demo,
    evaluate,
    label,
    plugin_list,
    recipes,
    stage_commands,
    system,
    visualize,
    zoo,
)

app = typer.Typer(
    name="cnf",
    help="Train, attack, harden and honestly measure neural routing solvers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(cnf_cli.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train, attack, harden and honestly measure neural routing solvers."""


for group in (
    stage_commands,
    evaluate,
    label,
    visualize,
    demo,
    bench,
    data,
    recipes,
    plugin_list,
    artifacts,
    zoo,
    system,
):
    group.register(app)
