"""Gap against how far the attack moved the nodes: the mean of equal groups of instances, with 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from cnf_cli.evaluation.statistics import bootstrap
from cnf_cli.plots._source import Array, Ask, Measured, NothingToDraw, Source, Sources, measured, percent, short_set
from cnf_cli.plots._style import colour, grid, level, marker

READS = ("evaluate", "label", "attack")
FACTS: tuple[str, ...] = ()
_GROUP = 8
"""Fewest instances per point."""
_POINTS = 6


@dataclass(frozen=True)
class Line:
    """One method on one set: groups of instances from the least to the most moved."""

    set: str
    method: str
    moved: Array
    """(g,), mean move of a node in map widths."""
    gap: Array
    low: Array
    high: Array


def collect(found: Sources, ask: Ask) -> list[Line]:
    """Every adversarial set of which the attack's own numbers are known."""
    lines: dict[tuple[str, str], list[tuple[Array, Array]]] = {}
    for source in found.need("evaluate", what="adversarial sets in an evaluation"):
        for one in measured(source):
            moved = _moved(found, source, one)
            if moved is None:
                continue
            for k in one.method_ids():
                gap = one.best_gaps(k)
                known = np.isfinite(gap)
                # Sets of several attacks with different budgets are one line.
                lines.setdefault((short_set(one.name), one.methods[k]), []).append((moved[known], gap[known]))
    out = [_line(*key, np.concatenate([m for m, _ in some]), np.concatenate([g for _, g in some]))
           for key, some in lines.items()]  # fmt: skip
    if not out:
        raise NothingToDraw(
            "no set of this evaluation says how far an attack moved its nodes", hint="`cnf evaluate RECIPE` has one"
        )
    return out


def _moved(found: Sources, source: Source, one: Measured) -> Array | None:
    """How far each instance's nodes were moved, as the attack wrote it down; None where there was no attack."""
    data = found.input_of(source, f"data-{one.index}")
    if data is None or "moved_mean" not in data.data.blocks[0].extra:
        return None
    moved: Array = np.concatenate([block.extra["moved_mean"] for block in data.data.blocks])
    return moved[: len(one.reference)] if moved.any() else None  # a matrix has no nodes to move


def _line(name: str, method: str, moved: Array, gap: Array) -> Line:
    order = np.argsort(moved, kind="stable")
    groups = np.array_split(order, max(1, min(_POINTS, len(order) // _GROUP)))
    intervals = [bootstrap(gap[group]) for group in groups]
    return Line(
        name,
        method,
        np.array([moved[group].mean() for group in groups]),
        np.array([i.mean for i in intervals]),
        np.array([i.low for i in intervals]),
        np.array([i.high for i in intervals]),
    )


def words(data: Sequence[Line]) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = [
        f"{one.method} on {one.set}: {percent(one.gap[0])} at {one.moved[0]:.2f} map widths, "
        f"{percent(one.gap[-1])} at {one.moved[-1]:.2f}"
        for one in data
    ]
    return "Gap by strength of the attack", "; ".join(told) + "."


def draw(data: Sequence[Line]) -> Figure:
    """A panel per adversarial set, a line per method."""
    names = list(dict.fromkeys(one.set for one in data))
    methods = list(dict.fromkeys(one.method for one in data))
    figure, axes = grid(1, len(names), 4.2, 3.4)
    for ax, name in zip(axes[0], names, strict=True):
        for one in data:
            if one.set != name:
                continue
            k = methods.index(one.method)
            ax.fill_between(one.moved, one.low, one.high, color=colour(k), alpha=0.18, linewidth=0)
            ax.plot(
                one.moved, one.gap, color=colour(k), marker=marker(k), markersize=5, label=one.method, clip_on=False
            )
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        ax.set_xlabel("mean move of a node (map widths)")
        ax.set_title(name)
        ax.legend()
    level(axes[0])
    axes[0][0].set_ylabel("gap to the reference (%)")
    return figure
