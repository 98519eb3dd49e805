"""`cnf list`: every plugin and every parameter, without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command

if TYPE_CHECKING:
    from cnf_cli.recipe import Section


def register(app: typer.Typer) -> None:
    """Add `cnf list`."""
    command(app, "list", rich_help_panel="Recipes")(list_plugins)


def list_plugins(
    ctx: Context,
    family: Annotated[
        str | None,
        typer.Argument(help="problems, policies, attacks, defences, solvers", autocompletion=complete.families),
    ] = None,
    kind: Annotated[str | None, typer.Argument(help="one plugin", autocompletion=complete.kinds)] = None,
) -> None:
    """List plugins, or one plugin's parameters with defaults and descriptions."""
    from cnf_cli import plugins

    if family and kind:
        rows = list(_rows(plugins.params(family, kind)))
        keys = [{"key": k, "type": t, "default": d, "description": text} for k, t, d, text in rows]
        ctx.emit({"family": family, "kind": kind, "summary": plugins.summary(family, kind), "keys": keys})
        ctx.table(("key", "type", "default", "description"), rows, title=f"{kind}: {plugins.summary(family, kind)}")
        return
    families = [family] if family else list(plugins.FAMILIES)
    found = [(f, k, plugins.summary(f, k)) for f in families for k in plugins.kinds(f)]
    ctx.emit({"plugins": [{"family": f, "kind": k, "summary": text} for f, k, text in found]})
    ctx.table(("family", "kind", "what it is"), found)


def _rows(section: type[Section], prefix: str = "") -> Any:
    from pydantic_core import PydanticUndefined

    from cnf_cli.recipe import Section

    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _rows(inner, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else repr(default)
        yield f"{prefix}{name}", _type_name(inner), shown, field.description or ""


def _type_name(annotation: Any) -> str:
    from typing import Literal, get_args, get_origin

    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation)) if not get_args(annotation) else str(annotation)
