"""Figures: one file per kind, found by file name; nothing here imports matplotlib until a figure is drawn."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from cnf_cli.errors import RecipeError, did_you_mean

_FOLDER = Path(__file__).parent


@cache
def kinds() -> tuple[str, ...]:
    """The names of all figure kinds: files that define `draw`."""
    files = (p for p in _FOLDER.glob("*.py") if not p.name.startswith("_"))
    return tuple(sorted(p.stem for p in files if any(_is_draw(node) for node in _parse(p).body)))


def summary(kind: str) -> str:
    """The first line of the file's docstring."""
    return (ast.get_docstring(_parse(_FOLDER / f"{check(kind)}.py")) or "").partition("\n")[0]


def load(kind: str) -> ModuleType:
    """The figure's module: READS and FACTS, `collect` from artifacts to arrays, `draw` from arrays to a figure."""
    return importlib.import_module(f"cnf_cli.plots.{check(kind)}")


def check(kind: str) -> str:
    """The kind itself, if there is one of that name."""
    if kind not in kinds():
        near = did_you_mean(kind, kinds())
        hint = f"did you mean '{near}'? " if near else ""
        raise RecipeError(
            f"'{kind}' is not a kind of figure: {', '.join(kinds())}", hint=hint + "`cnf visualize --list` says more."
        )
    return kind


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _is_draw(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "draw"
