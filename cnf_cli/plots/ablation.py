"""Bars of every method's gap on every set, with 95% intervals: what each change costs or gains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from cnf_cli.plots._gaps import Method, methods_of, sets_of
from cnf_cli.plots._source import Ask, Sources, percent
from cnf_cli.plots._style import INK, colour, grid, level

READS = ("evaluate",)
FACTS: tuple[str, ...] = ()
_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")


@dataclass(frozen=True)
class Data:
    """Methods and the sets they are compared on, a panel each."""

    methods: tuple[Method, ...]
    sets: tuple[str, ...]


def collect(found: Sources, ask: Ask) -> Data:
    """Every method on every set, clean ones first."""
    methods = methods_of(found)
    clean, adversarial = sets_of(methods)
    return Data(tuple(methods), (*clean, *adversarial))


def words(data: Data) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = []
    for name in data.sets:
        have = [m for m in data.methods if name in m.gaps]
        best = min(have, key=lambda m: m.gaps[name].mean)
        told.append(f"on {name} the best is {best.name} with {percent(best.gaps[name].mean)}")
    return "Methods side by side", "Lower is better: " + "; ".join(told) + "."


def draw(data: Data) -> Figure:
    """A panel per set, a bar per method, its value above it."""
    wide = max(2.4, 0.75 * len(data.methods) + 1.0)
    figure, axes = grid(1, len(data.sets), wide, 3.4)
    for ax, name in zip(axes[0], data.sets, strict=True):
        have = [(k, m) for k, m in enumerate(data.methods) if name in m.gaps]
        for at, (k, method) in enumerate(have):
            gap = method.gaps[name]
            error = [[gap.mean - gap.low], [gap.high - gap.mean]]
            ax.bar(
                at, gap.mean, 0.7, yerr=error, capsize=3, color=colour(k), ecolor=INK, edgecolor="white",
                hatch=_HATCHES[k % len(_HATCHES)],
            )  # fmt: skip
            ax.annotate(
                percent(gap.mean), (at, max(gap.high, 0)), xytext=(0, 3), textcoords="offset points", ha="center",
                fontsize=8,
            )  # fmt: skip
        ax.set_xticks(np.arange(len(have)), [m.name for _, m in have], rotation=30, ha="right")
        ax.set_title(name)
        ax.set_xlim(-0.6, max(1, len(have)) - 0.4)
        ax.margins(y=0.12)
        ax.grid(False, axis="x")
    level(axes[0])
    axes[0][0].set_ylabel("gap to the reference (%)")
    return figure
