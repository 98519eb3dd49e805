"""Read a recipe: TOML, what it extends, and `--set` overrides, remembering which file and line set each key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnf_cli.errors import RecipeError, did_you_mean
from cnf_cli.recipe import place
from cnf_cli.recipe.build import TABLES, Recipe, build
from cnf_cli.recipe.scan import MAX_PARTS, scan
from cnf_cli.regular_files import FULL, read

MAX_BYTES = 1_000_000
MAX_DEPTH = 16

Lines = dict[str, str]
"""Dotted key -> 'file:line' of where it was set."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The validated recipe in `path`, here or shipped, on top of what it extends, below the overrides."""
    lines: Lines = {}
    tables = _read(place.find(path), lines, ())
    return finish(path.stem, tables, lines, overrides, source=str(path))


def finish(name: str, tables: dict[str, Any], lines: Lines, overrides: Sequence[str] = (), source: str = "") -> Recipe:
    """A validated recipe from raw tables and `--set` overrides."""
    for text in overrides:
        _override(tables, lines, text)
    return build(name, tables, lambda dotted: locate(lines, dotted), source)


def locate(lines: Lines, dotted: str) -> str | None:
    """Where `dotted`, or the longest known beginning of it, was set."""
    parts = dotted.split(".")
    while parts:
        if ".".join(parts) in lines:
            return lines[".".join(parts)]
        parts.pop()
    return None


def _read(path: Path, lines: Lines, above: tuple[Path, ...]) -> dict[str, Any]:
    real = Path(os.path.realpath(path))
    if real in above:
        raise RecipeError(
            f"recipes extend each other in a circle: {' -> '.join(p.name for p in (*above, real))}", at=str(path)
        )
    if len(above) >= MAX_DEPTH:
        raise RecipeError(f"recipes extend each other more than {MAX_DEPTH} levels deep", at=str(path))
    text = _text(path)
    own_lines = {key: f"{path}:{line}" for key, line in scan(text, str(path))}
    own = _parse(text, path)
    parent = own.pop("extends", None)
    if parent is None:
        lines.update(own_lines)
        return own
    if not isinstance(parent, str) or Path(parent).is_absolute() or not parent or "\0" in parent:
        raise RecipeError("extends must be the relative path of another recipe", at=own_lines.get("extends"))
    try:
        base = _read(path.parent / parent, lines, (*above, real))
    except RecipeError as error:
        if error.at is None:
            raise RecipeError(error.message, at=own_lines.get("extends"), hint=error.hint) from None
        raise
    lines.update(own_lines)
    return {**base, **{table: _over(table, base.get(table), value) for table, value in own.items()}}


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for an integer of too many digits
        found = re.search(r"\(at line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise RecipeError(f"not valid TOML: {what}", at=f"{path}:{found[1]}" if found else str(path)) from None


def _text(path: Path) -> str:
    """The file's text without a byte order mark; only a regular file of bounded size is read."""
    try:
        return read(path, MAX_BYTES).decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        near = did_you_mean(path.name, _neighbours(path))
        hint = f"did you mean '{path.parent / near}'?" if near else "`cnf init NAME` writes a commented starter file."
        raise RecipeError(f"there is no recipe '{path}'", hint=hint) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe is not UTF-8 text: {error.reason} at byte {error.start}", at=str(path)) from None
    except OSError as error:
        if error.errno in FULL:
            raise RecipeError(f"recipe is larger than {MAX_BYTES} bytes", at=str(path)) from None
        raise RecipeError(f"cannot read the recipe: {error.strerror}", at=str(path)) from None
    except ValueError as error:
        raise RecipeError(f"cannot read the recipe: {error}") from None


def _neighbours(path: Path) -> tuple[str, ...]:
    try:
        return tuple(p.name for p in path.parent.glob("*.toml"))
    except OSError:
        return ()


def _over(table: str, base: Any, own: Any) -> Any:
    """`own` over `base`; a table that chooses another plugin keeps only the keys all plugins of its family have."""
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    spec = TABLES.get(table)
    if spec and spec.family and own.get(spec.chooser, base.get(spec.chooser)) != base.get(spec.chooser):
        base = {key: value for key, value in base.items() if key in spec.section.model_fields}
    return {**base, **{key: _over("", base.get(key), value) for key, value in own.items()}}


def _override(tables: dict[str, Any], lines: Lines, text: str) -> None:
    """Apply one `--set table.key=value`; the value is TOML, and a bare word is a string."""
    dotted, equals, raw = (part.strip() for part in text.partition("="))
    parts = dotted.split(".")
    if not equals or not 2 <= len(parts) <= MAX_PARTS or not all(re.fullmatch(r"[A-Za-z0-9_-]+", p) for p in parts):
        raise RecipeError(f"--set takes table.key=value, not '{text[:80]}'", hint="for example: --set train.models=5")
    bare = re.fullmatch(r"[A-Za-z_][\w./-]*", raw) and raw not in ("true", "false", "nan", "inf")
    try:
        value: Any = raw if bare else _value(raw)
    except (ValueError, RecursionError, RecipeError):
        raise RecipeError(
            f"--set {dotted}: '{raw[:80]}' is not one TOML value", hint="quote text: --set problem.kind='\"tsp\"'"
        ) from None
    for part in reversed(parts[1:]):
        value = {part: value}
    tables[parts[0]] = _over(parts[0], tables.get(parts[0], {}), value)
    lines[dotted] = f"--set {text}"


def _value(raw: str) -> Any:
    """The one value that a text of TOML is; what follows it is refused, not dropped."""
    text = f"value = {raw}"
    list(scan(text, "--set"))
    found = tomllib.loads(text)
    if list(found) != ["value"]:
        raise ValueError("more than one value")
    return found["value"]
