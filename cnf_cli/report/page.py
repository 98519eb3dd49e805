"""The page: story first, then pictures, tables, worst instances, and how each number came about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cnf_cli.plots._source import percent, short_set
from cnf_cli.report.html import Cell, Code, details, document, esc, figure, section, table
from cnf_cli.report.story import Story, Tile

ORDER = (
    "tours", "attack", "tradeoff", "ablation", "budget", "transfer", "routing", "curves", "sizes", "distributions",
)  # fmt: skip
RESULTS = (
    "set", "method", "effort", "instances", "mean cost", "gap %", "95% interval", "median %", "95th %", "worst %",
    "not worse %",
)  # fmt: skip
WORDS = (
    ("instance", "one map (or matrix) with places to visit."),
    ("gap", "how much longer a tour is than the reference solver's tour of the same instance, in percent."),
    ("clean", "drawn at random, not changed by anybody."),
    ("fixed adversarial", "changed to make the pretrained model fail; the same instances for every method."),
    ("white box", "changed with full knowledge of the very models that are then measured, each on its own set."),
    ("ensemble, (3)", "so many models; each instance gets the best of their tours."),
    ("x8", "each instance is also solved as its 7 mirror images and rotations, and the best tour counts."),
    ("95% interval", "where the mean gap would lie for other instances of the same kind, 19 times out of 20."),
)


@dataclass(frozen=True)
class Made:
    """One stage in the history of the numbers."""

    stage: str
    key: str
    command: str
    """What makes this artifact alone."""
    typed: str
    """What was typed when it was made."""
    seconds: float | None
    finished: str
    sections: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One evaluation on the page."""

    key: str
    story: Story
    rows: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Mapping[str, Any]]
    worst: tuple[str, Sequence[str], Sequence[Sequence[object]]] | None = None
    """Set, head and lines of the table of the worst instances."""


@dataclass(frozen=True)
class Page:
    """All that is told."""

    title: str
    parts: Sequence[Part]
    figures: Sequence[tuple[Mapping[str, Any], bytes]]
    history: Sequence[Made]
    machine: Mapping[str, str]
    hero: tuple[Mapping[str, Any], bytes] | None = None
    """The one picture that stands beside the story."""
    recipe: str = ""
    warnings: Sequence[str] = ()


def render(page: Page) -> str:
    """The page as one HTML text."""
    pictures = {words["kind"]: figure(words, svg) for words, svg in page.figures}
    first = page.parts[0]
    links = (("results", "Results"), ("figures", "Figures"), ("worst", "Worst instances"), ("made", "How it was made"))
    nav = "".join(f'<li><a href="#{anchor}">{text}</a></li>' for anchor, text in links)
    rest = [pictures[kind] for kind in (*ORDER, *pictures) if kind in pictures and kind != "tours"]
    body = [
        f'<header><p class="over">{esc(page.title)}</p><h1>{esc(first.story.headline)}</h1></header>',
        _tiles(first.story.tiles),
        f'<nav aria-label="Contents"><ul>{nav}</ul></nav>',
        figure({**page.hero[0], "kind": "hero"}, page.hero[1]) if page.hero else "",
        _paragraphs(first.story),
        *(_other(part) for part in page.parts[1:]),
        section("results", "Results", *(_results(part, len(page.parts) > 1) for part in page.parts)),
        section("worst", "Worst instances", *(_worst(part) for part in page.parts), pictures.get("tours", "")),
        section("figures", "Figures", *dict.fromkeys(rest)),
        section("made", "How it was made", _made(page)),
        section("words", "Words", "<dl>" + "".join(f"<dt>{esc(w)}</dt><dd>{esc(t)}</dd>" for w, t in WORDS) + "</dl>"),
    ]
    return document(page.title, "\n".join(part for part in body if part))


def _tiles(tiles: Sequence[Tile]) -> str:
    out = []
    for tile in tiles:
        shown = percent(tile.before)
        if tile.after is not None:
            mood = "better" if tile.after < tile.before else "worse" if tile.after > tile.before else ""
            shown += f' &rarr; <span class="{mood}">{percent(tile.after)}</span>'
        out.append(f'<div class="tile">{esc(tile.label)}<b>{shown}</b><small>{esc(tile.note)}</small></div>')
    note = '<p class="note">Mean gap to the reference, before and after hardening; lower is better.</p>'
    return f'<div class="tiles">{"".join(out)}</div>{note}' if out else ""


def _paragraphs(story: Story) -> str:
    return "".join(f"<h3>{esc(head)}</h3><p>{esc(text)}</p>" for head, text in story.paragraphs)


def _other(part: Part) -> str:
    return f"<h2>{esc(part.story.headline)}</h2>{_tiles(part.story.tiles)}{_paragraphs(part.story)}"


def _results(part: Part, several: bool) -> str:
    whole = [_line(row) for row in part.rows if row["model"] is None]
    single = [_line(row) for row in part.rows if row["model"] is not None]
    out = f"<p>Evaluation <code>{esc(part.key[:12])}</code></p>" if several else ""
    out += table(RESULTS, whole, "Results")
    out += '<p class="note">Click a column to sort by it. Gaps are in percent of the reference; "not worse" is the'
    out += " share of instances on which the reference is reached or beaten.</p>"
    by_set = dict.fromkeys((short_set(row["set"]), row["reference"]) for row in part.rows)
    who = dict.fromkeys(reference for _, reference in by_set)
    told = "; ".join(f"{name}: {reference}" for name, reference in by_set) if len(who) > 1 else ", ".join(who)
    out += f"<p>Reference: {esc(told)}.</p>"
    if part.comparisons:
        out += "<h3>Tests</h3><ul>" + "".join(f"<li>{esc(c['verdict'])}</li>" for c in part.comparisons) + "</ul>"
    if single:
        out += details("Every model on its own", table(RESULTS, single, "Results of single models"))
    return out


def _line(row: Mapping[str, Any]) -> tuple[object, ...]:
    method = row["method"] if row["model"] is None else f"{row['method']} model {row['model']}"
    low, high = row["gap_ci95"] or (None, None)
    between = "-" if low is None else f"{low:.3f} to {high:.3f}"
    share = row["share_not_worse"]
    return (
        short_set(row["set"]),
        method,
        f"x{row['augment']}" if row["decode"] else "-",
        Cell(str(row["count"]), row["count"]),
        number(row["cost"], ".6g"),
        number(row["gap_percent"]),
        Cell(between, low),
        *(number(row[name]) for name in ("p50", "p95", "worst")),
        number(None if share is None else 100 * share, ".1f"),
    )


def number(value: float | None, style: str = ".3f") -> Cell:
    """A number, or a dash."""
    return Cell("-") if value is None else Cell(f"{value:z{style}}", value)


def _worst(part: Part) -> str:
    if part.worst is None:
        return ""
    name, head, rows = part.worst
    told = f"<p>On <b>{esc(short_set(name))}</b> instances, where {esc(head[1].partition(' gap')[0])} does worst:</p>"
    return told + table(head, rows, "Worst instances")


def _made(page: Page) -> str:
    out = ""
    if page.recipe:
        out += "<p>Everything on this page comes from one recipe and one command; the second run finds every result in"
        out += f" the store:</p><pre>cnf report {esc(page.recipe)}</pre>"
    for warning in page.warnings:
        out += f"<p>Mind: {esc(warning)}.</p>"
    out += "<p>Each stage, what it was made from above it. An id names content: the same recipe, code and data give the"
    out += " same id, and <code>cnf show ID</code> tells all about it.</p>"
    typed = dict.fromkeys(m.typed for m in page.history if m.typed)
    if len(typed) == 1:
        out += f"<p>All of it was made by typing <code>{esc(next(iter(typed)))}</code>.</p>"
    lines = [
        (m.stage, Code(m.key[:12]), Code(m.command), number(m.seconds, ".1f"), m.finished, Code(m.typed))
        for m in page.history
    ]
    head = ("stage", "id", "how to make it alone", "seconds", "finished", "made by typing")
    wide = len(head) if len(typed) > 1 else len(head) - 1
    out += table(head[:wide], [line[:wide] for line in lines], "Stages")
    out += table(("what", "which"), list(page.machine.items()), "Versions and machine")
    for m in page.history:
        if m.sections:
            text = json.dumps(m.sections, indent=1, sort_keys=True)
            out += details(f"Settings of {m.stage} {m.key[:12]}", f"<pre>{esc(text)}</pre>")
    return out
