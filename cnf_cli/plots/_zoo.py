"""How the gap of each of the zoo's entries fell while it was trained, for docs/zoo.md."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from cnf_cli.plots._style import colour, dash, encode, grid, logarithmic, marker, styled
from cnf_cli.zoo.cards import Card

_MARKERS = 12
"""Of a line, at most: more than that hide it."""


def draw(cards: Sequence[Card]) -> bytes:
    """An SVG: a row per problem, the validation gap against instances and against core-minutes, one line per entry."""
    watched = [one for one in cards if one.progress()]
    kinds = sorted({one.kind for one in watched}, reverse=True)
    with styled():
        figure, axes = grid(len(kinds), 2, 5.0, 2.9)
        for row, kind in zip(axes, kinds, strict=True):
            mine = [one for one in watched if one.kind == kind]
            for ax, k, unit in zip(row, (0, 1), (1000, 1), strict=True):
                for i, one in enumerate(mine):
                    _line(ax, i, one, [(p[k] / unit, p[2]) for p in one.progress()])
                ax.set_ylabel(f"{kind.upper()}: validation gap (%), greedy")
                logarithmic(ax.xaxis)
                logarithmic(ax.yaxis)
            row[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        for ax, label in zip(axes[-1], ("training instances (thousands)", "core-minutes"), strict=True):
            ax.set_xlabel(label)
        return encode(figure, "svg")


def _line(ax: Axes, i: int, one: Card, points: Sequence[tuple[float, float]]) -> None:
    copies = one.training[0].copies
    name = one.alias if copies == 1 else f"{one.alias} (x{copies})"
    every = -(-len(points) // _MARKERS)
    ax.plot(
        *zip(*points, strict=True), color=colour(i), linestyle=dash(i), marker=marker(i), markersize=3, markevery=every,
        linewidth=1.2, label=name,
    )  # fmt: skip
