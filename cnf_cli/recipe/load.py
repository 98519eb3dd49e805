"""Read a recipe: TOML, what it extends, and `--set` overrides, remembering which file and line set each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnf_cli.errors import RecipeError, did_you_mean
from cnf_cli.recipe.build import TABLES, Recipe, build

MAX_BYTES = 1_000_000
MAX_DEPTH = 16

Lines = dict[str, str]
"""Dotted key -> 'file:line' of where it was set."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The validated recipe in `path`, on top of what it extends, below the overrides."""
    lines: Lines = {}
    tables = _read(path, lines, ())
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
    real = path.resolve()
    if real in above:
        raise RecipeError(
            f"recipes extend each other in a circle: {' -> '.join(p.name for p in (*above, real))}", at=str(path)
        )
    if len(above) >= MAX_DEPTH:
        raise RecipeError(f"recipes extend each other more than {MAX_DEPTH} levels deep", at=str(path))
    text = _text(path)
    try:
        own = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"\(at line (\d+)", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        raise RecipeError(f"not valid TOML: {what}", at=f"{path}:{found[1]}" if found else str(path)) from None
    own_lines = {key: f"{path}:{line}" for key, line in scan(text)}
    parent = own.pop("extends", None)
    if parent is None:
        lines.update(own_lines)
        return own
    if not isinstance(parent, str) or Path(parent).is_absolute() or not parent:
        raise RecipeError("extends must be the relative path of another recipe", at=own_lines.get("extends"))
    try:
        base = _read(path.parent / parent, lines, (*above, real))
    except RecipeError as error:
        if error.at is None:
            raise RecipeError(error.message, at=own_lines.get("extends"), hint=error.hint) from None
        raise
    lines.update(own_lines)
    return {**base, **{table: _over(table, base.get(table), value) for table, value in own.items()}}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecipeError(f"recipe is larger than {MAX_BYTES} bytes", at=str(path))
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = did_you_mean(path.name, _neighbours(path))
        hint = f"did you mean '{path.parent / near}'?" if near else "`cnf init NAME` writes a commented starter file."
        raise RecipeError(f"there is no recipe '{path}'", hint=hint) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe is not UTF-8 text: {error.reason} at byte {error.start}", at=str(path)) from None
    except OSError as error:
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
    if not equals or len(parts) < 2 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", p) for p in parts):
        raise RecipeError(f"--set takes table.key=value, not '{text}'", hint="for example: --set train.models=5")
    bare = re.fullmatch(r"[A-Za-z_][\w./-]*", raw) and raw not in ("true", "false", "nan", "inf")
    try:
        value: Any = raw if bare else tomllib.loads(f"value = {raw}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        raise RecipeError(
            f"--set {dotted}: '{raw}' is not a TOML value", hint="quote text: --set problem.kind='\"tsp\"'"
        ) from None
    for part in reversed(parts[1:]):
        value = {part: value}
    tables[parts[0]] = _over(parts[0], tables.get(parts[0], {}), value)
    lines[dotted] = f"--set {text}"


def scan(text: str) -> Iterator[tuple[str, int]]:
    """(dotted key, line number) of every table header and key; values over several lines are skipped."""
    table: list[str] = []
    open_until: str | None = None
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if open_until:
            _, closed, line = line.partition(open_until)
            if not closed:
                continue
            open_until = None
        elif depth <= 0:
            header = re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]+", line)
            pair = re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=(.*)""", line)
            if header:
                table = _parts(header[1])
                yield ".".join(table), number
                continue
            if pair:
                yield ".".join([*table, *_parts(pair[1])]), number
                line = pair[2]
        open_until, line = _strip_strings(line)
        depth = max(0, depth + line.count("[") + line.count("{") - line.count("]") - line.count("}"))


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _strip_strings(line: str) -> tuple[str | None, str]:
    """(quotes of a multi-line string left open, the line without strings and comment)."""
    for quotes in ('"""', "'''"):
        line = re.sub(f"{quotes}.*?{quotes}", "", line)
        if quotes in line:
            return quotes, line.partition(quotes)[0]
    line = re.sub(r'"(?:[^"\\]|\\.)*"' + r"|'[^']*'", "", line)
    return None, line.partition("#")[0]
