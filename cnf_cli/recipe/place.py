"""Where the shipped recipes are: `recipes/tsp20.toml` names one of them where there is no such file here."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
NAME = "recipes"


def shipped() -> Path:
    """The folder of the shipped recipes: inside an installed package, beside the package in its source tree."""
    inside = _PACKAGE / NAME
    return inside if inside.is_dir() else _PACKAGE.parent / NAME


def find(path: Path) -> Path:
    """The file itself; where it is not there and its name begins with `recipes/`, the shipped one, if there is one."""
    if path.parts[:1] != (NAME,) or ".." in path.parts or os.path.lexists(path):
        return path
    own = shipped().joinpath(*path.parts[1:])
    try:
        return own if own.is_file() else path
    except OSError:  # a name too long for any file
        return path


def names() -> list[str]:
    """Every shipped recipe, as a user names it."""
    top = shipped()
    return sorted(f"{NAME}/{path.relative_to(top).as_posix()}" for path in top.rglob("*.toml"))
