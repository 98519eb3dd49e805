"""Small pieces of HTML; every text that goes in is escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, and as it is sorted."""

    text: str
    value: float | None = None


def esc(value: object) -> str:
    """Text as HTML shows it unchanged."""
    return html.escape(str(value), quote=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """A table; columns of numbers are flush right, and sorted as numbers."""
    numeric = [bool(rows) and all(isinstance(row[i], Cell) for row in rows) for i in range(len(head))]
    heads = "".join(f'<th scope="col"{_n(numeric[i])}>{esc(name)}</th>' for i, name in enumerate(head))
    body = "".join("<tr>" + "".join(_cell(c, numeric[i]) for i, c in enumerate(row)) + "</tr>" for row in rows)
    label = f' aria-label="{esc(caption)}"' if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table{label}>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: object, numeric: bool) -> str:
    if isinstance(value, Cell):
        sort = "" if value.value is None else f' data-v="{value.value:.10g}"'
        return f"<td{_n(numeric)}{sort}>{esc(value.text)}</td>"
    if isinstance(value, Code):
        return f"<td><code>{esc(value)}</code></td>"
    return f"<td>{esc(value)}</td>"


class Code(str):
    """Text to be shown as something to type."""

    __slots__ = ()


def figure(words: Mapping[str, Any], svg: bytes) -> str:
    """A picture inside the page, with its caption and its description for those who do not see it."""
    data = base64.b64encode(svg).decode()
    title = str(words["title"])
    title += "" if title.endswith(("?", "!", ".")) else "."
    return (
        f'<figure id="figure-{esc(words["kind"])}">'
        f'<div class="picture"><img alt="{esc(words["alt"])}" src="data:image/svg+xml;base64,{data}"></div>'
        f"<figcaption><b>{esc(title)}</b> {esc(words['caption'])}</figcaption></figure>"
    )


def section(anchor: str, title: str, *parts: str) -> str:
    """A part of the page that the list at the top links to; nothing when it is empty."""
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{esc(anchor)}"><h2>{esc(title)}</h2>\n{inside}</section>' if inside else ""


def details(summary: str, inside: str, *, opened: bool = False) -> str:
    """Something to unfold."""
    return f"<details{' open' if opened else ''}><summary>{esc(summary)}</summary>{inside}</details>"


def document(title: str, body: str) -> str:
    """A whole page that needs nothing from anywhere."""
    css = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{esc(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{css}</style></head>\n<body>\n{body}\n<script>\n{script}</script></body></html>\n"
    )
