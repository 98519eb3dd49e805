"""What every command shares: --json, -q, -v, --store, and one sink for what it says."""

from __future__ import annotations

import inspect
import json as json_module
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from cnf_cli.pipeline import ranks
from cnf_cli.terminal import columns, printable, write

if TYPE_CHECKING:
    from rich.console import Console

    from cnf_cli.pipeline.job import Bars
    from cnf_cli.store import Store

COMMON = "Common options"


@dataclass(frozen=True)
class Context:
    """One call of one command: stdout is data, stderr is talk."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    store_path: Path = Path("artifacts")
    wait: bool = True
    """For another process that works on the same result."""
    notes: list[str] = field(default_factory=list)
    """What a reader of --json should know too; see `note`."""

    @cached_property
    def store(self) -> Store:
        from cnf_cli.store import Store

        return Store(self.store_path)

    @cached_property
    def console(self) -> Console:
        """Talk: stderr."""
        from rich.console import Console

        return Console(stderr=True, quiet=self.quiet, highlight=False, soft_wrap=not sys.stderr.isatty())

    @cached_property
    def bars(self) -> Bars:
        from cnf_cli.cli.progress import make_bars

        return make_bars(self.console, quiet=self.quiet)

    def say(self, text: str) -> None:
        """One line of talk; markup is not interpreted."""
        if not self.quiet:
            self.console.print(printable(text), markup=False)

    def write(self, text: str, end: str = "\n") -> None:
        """Part of the result on stdout, with control characters spelled out."""
        write(text, end)

    def note(self, text: str) -> None:
        """As `say`, and the line is also among the "notes" of the JSON object."""
        self.notes.append(text)
        self.say(text)

    def resolve(self, text: str) -> str:
        """The full key for an id, prefix or alias; `zoo/NAME` is taken into the store first."""
        from cnf_cli.zoo.place import PREFIX

        if text.startswith(PREFIX):
            from cnf_cli.stages import zoo

            return zoo.key_of(self.store, text, ("cnf", *sys.argv[1:]))
        return self.store.resolve(text)

    def emit(self, data: Any, text: str | None = None) -> None:
        """The command's result on stdout: one JSON object with --json, else `text`."""
        if _follower():
            return
        if self.notes and isinstance(data, dict):
            data = {**data, "notes": self.notes}
        if self.json:
            self.write(json_module.dumps(data, indent=2 if sys.stdout.isatty() else None, default=str))
        elif text is not None:
            self.write(text)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
        """A table on stdout, nothing with --json; columns of numbers are set flush right."""
        if self.json or _follower():
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        out = Table(
            title=title and printable(title), title_justify="left", header_style="bold", box=None, pad_edge=False
        )
        for i, name in enumerate(heads):
            numeric = bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
            out.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            out.add_row(*(Text(_cell(value)) for value in row))
        width = None if sys.stdout.isatty() else max(200, columns())
        Console(width=width, highlight=False).print(out)


def _follower() -> bool:
    """True in all but the first of several processes working together: only the first one talks."""
    return ranks.rank() > 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return printable(str(value))


_OPTIONS: Mapping[str, Any] = {
    "json": Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=COMMON)],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.", rich_help_panel=COMMON)],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks.", rich_help_panel=COMMON)],
    "store": Annotated[
        Path, typer.Option("--store", envvar="CNF_STORE", help="The artifact store.", rich_help_panel=COMMON)
    ],
}
_NO_WAIT = Annotated[
    bool,
    typer.Option(
        "--no-wait",
        help="Exit with code 75 where another process works on the same result.",
        rich_help_panel="Running",
    ),
]
_DEFAULTS: Mapping[str, Any] = {"json": False, "quiet": False, "verbose": False, "store": Path("artifacts")}


def command(
    app: typer.Typer, name: str | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function whose first parameter is a `Context` as a command with the common options.

    One with a parameter `plan` runs stages, so it takes --no-wait too.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        added = {"no_wait": _NO_WAIT, **_OPTIONS} if "plan" in hints else _OPTIONS
        for key, annotation in added.items():
            parameters.append(
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(key, False), annotation=annotation
                )
            )

        @wraps(function)
        def run(**given: Any) -> None:
            common = {key: given.pop(key) for key in _OPTIONS}
            wait = not given.pop("no_wait", False)
            quiet = common["quiet"] or _follower()
            function(Context(common["json"], quiet, common["verbose"], common["store"], wait), **given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__
        app.command(name, **options)(run)
        return function

    return register
