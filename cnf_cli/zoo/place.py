"""Where the zoo is, and what is in it: light enough for the shell's completion."""

from __future__ import annotations

import os
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PREFIX = "zoo/"
NAME = r"[a-z0-9][a-z0-9-]{0,47}"


def folder() -> Path:
    """Where the cards and weights are: inside the package, or in CNF_ZOO."""
    return Path(os.environ.get("CNF_ZOO") or HERE)


def names() -> list[str]:
    """Every entry's name, small before large within each problem."""
    try:
        found = [path.stem for path in folder().glob("*.json") if re.fullmatch(NAME, path.stem)]
    except OSError:
        return []
    return sorted(found, key=_order)


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
