"""`cnf list`: every plugin and every parameter, without importing torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
        rows = list(keys_of(plugins.params(family, kind)))
        keys = [{"key": k, "type": t, "default": d, "description": text} for k, t, d, text in rows]
        ctx.emit({"family": family, "kind": kind, "summary": plugins.summary(family, kind), "keys": keys})
        ctx.table(("key", "type", "default", "description"), rows, title=f"{kind}: {plugins.summary(family, kind)}")
        return
    families = [family] if family else list(plugins.FAMILIES)
    found = [(f, k, plugins.summary(f, k)) for f in families for k in plugins.kinds(f)]
    ctx.emit({"plugins": [{"family": f, "kind": k, "summary": text} for f, k, text in found]})
    ctx.table(("family", "kind", "what it is"), found)


def keys_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default as TOML, description) of every key, those of tables within it under their dotted names."""
    from pydantic_core import PydanticUndefined

    from cnf_cli.recipe import Section

    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from keys_of(inner, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else "none" if default is None else json.dumps(default)
        yield f"{prefix}{name}", _type_name(inner), shown, field.description or ""


def _type_name(annotation: Any) -> str:
    """A key's type as the reader of a recipe thinks of it."""
    from types import NoneType, UnionType
    from typing import Literal, Union, get_args, get_origin

    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(_type_name, inner))
    if origin is tuple:
        return f"list of {_type_name(inner[0])}"
    if origin is not None:  # Annotated: the rest is for validation
        return _type_name(inner[0])
    return "none" if annotation is NoneType else str(annotation.__name__)
