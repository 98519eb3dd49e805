"""`cnf recipe check|show|schema` and `cnf init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cnf_cli.cli import complete
from cnf_cli.cli.context import Context, command
from cnf_cli.errors import RecipeError

RecipePath = Annotated[Path, typer.Argument(help="A recipe file.", autocompletion=complete.recipes)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.models=5.")
]


def register(app: typer.Typer) -> None:
    """Add the recipe commands."""
    group = typer.Typer(no_args_is_help=True, help="Check, spell out and describe recipe files.")
    command(group, "check")(check)
    command(group, "show")(show)
    command(group, "schema")(schema)
    app.add_typer(group, name="recipe", rich_help_panel="Recipes")
    command(app, "init", rich_help_panel="Recipes")(init)


def check(ctx: Context, file: RecipePath, set_: Sets = None) -> None:
    """Validate a recipe: every key, every range, what it extends."""
    from cnf_cli.recipe import load_recipe

    recipe = load_recipe(file, set_ or ())
    ctx.emit({"recipe": recipe.name, "valid": True}, f"{file}: valid")


def show(ctx: Context, file: RecipePath, set_: Sets = None) -> None:
    """Print a recipe with every default spelled out, as TOML."""
    from cnf_cli.recipe import load_recipe

    recipe = load_recipe(file, set_ or ())
    ctx.emit(recipe.dump(), to_toml(recipe.dump()))


def schema(ctx: Context) -> None:
    """Print a JSON schema, so that editors complete and check recipe files."""
    import json

    from cnf_cli.recipe.schema import recipe_schema

    ctx.write(json.dumps(recipe_schema(), indent=None if ctx.json else 2))


def init(
    ctx: Context,
    name: Annotated[str, typer.Argument(help="Name of the experiment; NAME.toml is written.")],
    problem: Annotated[str, typer.Option(help="Problem plugin.")] = "tsp",
    n: Annotated[int, typer.Option(help="Nodes to visit.")] = 20,
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write to.")] = Path(),
) -> None:
    """Write a commented starter recipe, or copy out a shipped one that is named as `recipes/tsp20`."""
    from cnf_cli.recipe import load_recipe, place
    from cnf_cli.recipe.starter import starter

    if f"{name.removesuffix('.toml')}.toml" in place.names():
        return _copy_out(ctx, f"{name.removesuffix('.toml')}.toml", folder)
    path = folder / f"{name.removesuffix('.toml')}.toml"
    text = starter(problem, n)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise RecipeError(f"{path} exists already", hint="choose another name; nothing was changed.") from None
    except OSError as error:
        raise RecipeError(f"cannot write {path}: {error.strerror}") from None
    try:
        load_recipe(path)
    except RecipeError:
        path.unlink()
        raise
    ctx.say(f"wrote {path}; next: cnf pretrain {path}")
    return ctx.emit({"recipe": str(path)}, str(path))


def _copy_out(ctx: Context, name: str, folder: Path) -> None:
    """The shipped recipe is in the folder under its own name, with what it extends; nothing is overwritten."""
    import os
    import tomllib

    from cnf_cli.recipe import place
    from cnf_cli.regular_files import refuse_taken, write_atomic

    refuse_taken([folder / name], force=False)
    wanted: str | None = name
    while wanted:
        data = place.shipped().joinpath(*Path(wanted).parts[1:]).read_bytes()
        target = folder / wanted
        if not target.exists():  # what it extends may be the user's own already
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, data)
            ctx.say(f"wrote {target}")
        above = tomllib.loads(data.decode()).get("extends")
        wanted = above and os.path.normpath(Path(wanted).parent / above)
    ctx.emit({"recipe": str(folder / name)}, str(folder / name))


def to_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Plain TOML of tables of plain values; absent values become comments."""
    blocks = []
    for name, table in tables.items():
        lines = [f"[{name}]"] + [_toml_line(key, value) for key, value in table.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _toml_line(key: str, value: Any) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    import json

    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return json.dumps(value)
