"""The part of docs/zoo.md that comes from the cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cnf_cli.zoo.cards import Card

FIGURE = "img/zoo-curves.svg"
"""Beside the page; `cnf zoo docs` draws it too."""
_ROWS = 8
BEGIN, END = "<!-- from the cards: `cnf zoo docs` -->\n", "<!-- end -->\n"


def fresh(page: str, cards: Sequence[Card]) -> str:
    """The page with what the cards say now between its two marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has lost the marks around its generated part")
    return head + BEGIN + "\n" + "\n".join(lines(cards)) + "\n\n" + END + tail


def lines(cards: Sequence[Card]) -> Iterator[str]:
    """A table of all entries, then each entry's training and measurements."""
    yield "| name | problem | n | models | width | MB | instances seen | core-hours | clean gap % | adversarial gap % |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in cards:
        seen = sum(run.instances for run in one.training)
        gaps = [f"{g.gap_percent:.3f} (x{g.augment})" if (g := one.gap(s)) else "-" for s in ("uniform", "adversarial")]
        size = f"{one.weights.bytes / 1e6:.1f}"
        about = [f"`{one.alias}`", one.kind, one.n, one.models, one.policy.get("width"), size, f"{seen:,}"]
        yield "| " + " | ".join(str(cell) for cell in (*about, _hours(one), *gaps)) + " |"
    if any(one.progress() for one in cards):
        yield ""
        yield f"![Gap against instances and core-minutes, for every entry]({FIGURE})"
    for one in cards:
        yield ""
        yield from _entry(one)


def _hours(one: Card) -> str:
    """All runs together, from scratch."""
    loose = any(run.core_hours_are == "at most" for run in one.training)
    return f"{'at most ' if loose else ''}{sum(run.core_hours for run in one.training):.2f}"


def _entry(one: Card) -> Iterator[str]:
    yield f"### {one.alias}"
    yield ""
    yield f"{one.about}, {one.weights.dtype} on disk."
    for k, run in enumerate(one.training):
        how = "Trained by" if k == 0 else "It started from the result of"
        yield (
            f"{how} `{run.command}` ({run.recipe or 'no recipe'}): seed {run.seed}, {run.seen},"
            f" {run.seconds:,.0f} s on {run.machine['cpu']} with {run.machine['cores']} cores, {run.engine} engine."
        )
    yield from one.notes
    yield from (f"{name}: {', '.join(names)}." for name, names in {g.set: g.names for g in one.gaps if g.names}.items())
    yield ""
    yield "| set | copies | instances | cost | gap % | 95% interval | reference |"
    yield "|---|---|---|---|---|---|---|"
    for g in one.gaps:
        about = [g.set, f"x{g.augment}", g.instances, f"{g.cost:.6g}", f"{g.gap_percent:.3f}", g.interval, g.reference]
        yield "| " + " | ".join(str(cell) for cell in about) + " |"
    yield from _progress(one)
    yield ""
    yield "```sh"
    yield from dict.fromkeys(command for g in one.gaps for command in g.command.split(" && "))
    yield "```"


def _progress(one: Card) -> Iterator[str]:
    """How the gap fell, at a few points spread evenly over the training."""
    points = one.progress()
    if not points:
        return
    few = min(_ROWS, len(points))
    shown = [points[len(points) * (k + 1) // few - 1] for k in range(few)]
    yield ""
    yield f"While it was trained, greedy x{one.training[0].copies} on validation instances:"
    yield ""
    yield "| " + " | ".join(["instances", *(f"{n:,}" for n, _, _ in shown)]) + " |"
    yield "|" + "---|" * (few + 1)
    yield "| " + " | ".join(["core-minutes", *(f"{spent:.1f}" for _, spent, _ in shown)]) + " |"
    yield "| " + " | ".join(["gap %", *(f"{gap:.3f}" for _, _, gap in shown)]) + " |"
