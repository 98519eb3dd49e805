"""How the gap of each of the zoo's entries fell while it was trained, for docs/zoo.md."""

from __future__ import annotations

from collections.abc import Sequence

from cnf_cli.plots._style import colour, dash, encode, grid, logarithmic, marker, styled
from cnf_cli.zoo.cards import Card


def draw(cards: Sequence[Card]) -> bytes:
    """An SVG: the validation gap against instances and against core-minutes, one line per entry."""
    with styled():
        figure, axes = grid(1, 2, 5.4, 4.2)
        for ax, k, unit, label in zip(
            axes[0], (0, 1), (1000, 1), ("training instances (thousands)", "core-minutes"), strict=True
        ):
            for i, one in enumerate(cards):
                points = one.progress()
                if not points:
                    continue
                x, y = [p[k] / unit for p in points], [p[2] for p in points]
                copies = one.training[0].copies
                name = one.alias if copies == 1 else f"{one.alias} (x{copies})"
                ax.plot(x, y, color=colour(i), linestyle=dash(i), marker=marker(i), markersize=3, label=name)
            ax.set(xlabel=label, ylabel="validation gap (%), greedy")
            logarithmic(ax.xaxis)
            logarithmic(ax.yaxis)
        lines, names = axes[0][0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=5)
        return encode(figure, "svg")
