"""Which line sets which key, and what is too deep to be a recipe: one pass over the text, before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cnf_cli.errors import RecipeError

MAX_PARTS = 16
"""Parts of a dotted key, and levels of lists and tables inside each other."""
# Every alternative ends where it must and none gives back what it took, so the scan is linear whatever the text is.
_TOKEN = re.compile(
    r'''"""(?:[^"\\]|\\[\s\S]?|"(?!""))*+(?:"{3,5}|\Z)'''
    r"""|'''(?:[^']|'(?!''))*+(?:'{3,5}|\Z)"""
    r"""|"(?:[^"\\\n]|\\.?)*+"?"""
    r"""|'[^'\n]*+'?"""
    r"""|\#[^\n]*+|[ \t\r]++|\n|[\[\]{}=,.]|[^\s\[\]{}=,."'\#]++|."""
)


def scan(text: str, at: str = "text") -> Iterator[tuple[str, int]]:
    """(dotted key, line number) of every table header and key; keys inside lists and inline tables are left out."""
    table: list[str] = []
    parts: list[str] = []
    place, depth, dots, line = "start", 0, 0, 1  # place: start of a line, inside a header, a key or a value
    for found in _TOKEN.finditer(text):
        word, here = found[0], line
        line += word.count("\n")
        dots = _count(dots, word, f"{at}:{here}")
        if word == "\n" and depth == 0:
            place, parts = "start", []
        elif word[0] in " \t\r#":
            continue
        elif place == "value":
            depth = _level(depth, word, f"{at}:{here}")
        elif place == "start" and word == "[":
            place = "header"
        elif place == "header" and word == "]":
            if parts:
                table, parts = parts, []
                yield ".".join(table), here
        elif place == "header" and word in "[.":
            continue
        elif place != "header" and word == "=":
            place = "value"
            yield ".".join([*table, *parts]), here
        elif word != ".":
            place = "header" if place == "header" else "key"
            parts.append(word.strip("\"'"))


def _count(dots: int, word: str, at: str) -> int:
    """The dots since the last key or value began; a key of too many parts is refused."""
    if word == ".":
        dots += 1
    elif word in ("[", "]", "{", "}", "=", ",", "\n"):
        dots = 0
    if dots >= MAX_PARTS:
        raise RecipeError(f"a key has more than {MAX_PARTS} parts", at=at, hint="`cnf recipe schema` prints every key")
    return dots


def _level(depth: int, word: str, at: str) -> int:
    """How deep a value is inside lists and tables; one too deep is refused."""
    depth += (word in ("[", "{")) - (word in ("]", "}"))
    if depth > MAX_PARTS:
        raise RecipeError(
            f"lists or tables are more than {MAX_PARTS} levels deep", at=at, hint="`cnf recipe schema` prints every key"
        )
    return max(0, depth)
