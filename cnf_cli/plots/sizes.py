"""Gap against instance size: every instance a point, the mean of each size a line per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cnf_cli.plots._source import Array, Ask, NothingToDraw, Sources, measured, percent, short_set
from cnf_cli.plots._style import colour, grid, level, marker

READS = ("evaluate",)
FACTS: tuple[str, ...] = ()
_BINS = 12
"""Sizes beyond so many are averaged in groups."""


@dataclass(frozen=True)
class Points:
    """One method on one set."""

    set: str
    method: str
    nodes: Array
    """(b,), the depot included."""
    gap: Array
    """(b,), percent."""


def collect(found: Sources, ask: Ask) -> list[Points]:
    """Every instance with a known reference, of every set all methods were measured on."""
    out = []
    for source in found.need("evaluate", what="what `cnf evaluate` measured"):
        sets = measured(source)
        for one in [s for s in sets if s.only < 0] or sets:
            for k in one.method_ids():
                gap = one.best_gaps(k)
                known = np.isfinite(gap)
                if known.any():
                    out.append(Points(short_set(one.name), one.methods[k], one.nodes[known], gap[known]))
    if not out:
        raise NothingToDraw("no gap is known", hint="gaps need reference costs: `cnf label ID`")
    return out


def means(points: Points) -> tuple[Array, Array]:
    """Sizes and mean gaps; neighbouring sizes are put together where there are many."""
    sizes = np.unique(points.nodes)
    groups = np.array_split(sizes, min(_BINS, len(sizes)))
    inside = [np.isin(points.nodes, group) for group in groups]
    return np.array([points.nodes[i].mean() for i in inside]), np.array([points.gap[i].mean() for i in inside])


def thin(data: Sequence[Points]) -> bool:
    """True when all instances are of one size: a report says nothing new with it."""
    return len({int(n) for one in data for n in one.nodes}) == 1


def words(data: Sequence[Points]) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = []
    for one in data:
        at, gap = means(one)
        ends = f"{percent(gap[0])} at {at[0]:.0f} nodes"
        told.append(
            f"{one.method} on {one.set}: {ends}" + (f", {percent(gap[-1])} at {at[-1]:.0f}" if at[1:].size else "")
        )
    return "Gap by instance size", "; ".join(told) + "."


def draw(data: Sequence[Points]) -> Figure:
    """A panel per set."""
    names = list(dict.fromkeys(one.set for one in data))
    methods = list(dict.fromkeys(one.method for one in data))
    figure, axes = grid(1, len(names), 4.2, 3.4)
    for ax, name in zip(axes[0], names, strict=True):
        for one in data:
            if one.set == name:
                _series(ax, one, methods.index(one.method), len(methods))
        _axes(ax, [one for one in data if one.set == name], name)
    level(axes[0])
    axes[0][0].set_ylabel("gap to the reference (%)")
    return figure


def _series(ax: Axes, one: Points, k: int, total: int) -> None:
    # Side by side, so that the methods' points at one size do not hide each other.
    shift = 1 + 0.03 * (k - (total - 1) / 2)
    beside = 1 + 0.012 * (np.arange(len(one.gap)) * 0.618 % 1 - 0.5)
    ax.scatter(
        one.nodes * shift * beside,
        one.gap,
        s=14,
        color=colour(k),
        marker=marker(k),
        alpha=0.35,
        linewidths=0,
        clip_on=False,
    )
    at, gap = means(one)
    ax.plot(
        at * shift,
        gap,
        color=colour(k),
        marker=marker(k),
        markersize=7,
        markeredgecolor="white",
        label=one.method,
        clip_on=False,
    )


def _axes(ax: Axes, here: Sequence[Points], name: str) -> None:
    low, high = min(one.nodes.min() for one in here), max(one.nodes.max() for one in here)
    if high > 5 * low:
        ax.set_xscale("log")
    elif high == low:
        ax.set_xlim(0.85 * low, 1.15 * high)
        ax.set_xticks([float(low)], [str(low)])
    gaps = np.concatenate([one.gap for one in here])
    if gaps.max() > 50 and gaps.min() >= 0:
        ax.set_yscale("symlog", linthresh=1.0)
    ax.set_xlabel("nodes")
    ax.set_title(name)
    ax.legend()
