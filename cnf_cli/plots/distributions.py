"""Where the nodes of each data set lie: example instances, and the density of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from cnf_cli.plots._source import Array, Ask, NothingToDraw, Source, Sources
from cnf_cli.plots._style import COLOURS, INK, SEQUENTIAL, around, dots, grid, on_map, unit_of

READS = ("data", "imported", "attack")
FACTS: tuple[str, ...] = ()
_EXAMPLES = 2
_CELLS = 25


@dataclass(frozen=True)
class Drawn:
    """One data set."""

    name: str
    count: int
    examples: tuple[Array, ...]
    """(n, 2) each, in the units that are given."""
    density: Array
    """(cells, cells), [y, x], relative to nodes spread evenly."""
    depot: bool
    unit: str = "map widths"


def collect(found: Sources, ask: Ask) -> list[Drawn]:
    """Every data set with coordinates among the artifacts."""
    given = found.need("data", "imported", "attack", what="data sets")
    given.sort(key=lambda one: one.stage == "attack")  # what was attacked stands above what came of it
    out = [_drawn(one) for one in given if "data.h5" in one.manifest.outputs and one.data.blocks[0].xy is not None]
    if not out:
        raise NothingToDraw("no data set with coordinates is given")
    return out


def _drawn(source: Source) -> Drawn:
    blocks = [block for block in source.data.blocks if block.xy is not None]
    maps = [xy for block in blocks for xy in np.asarray(block.xy)]
    every = np.concatenate([_unit(xy) for xy in maps])
    density, _, _ = np.histogram2d(every[:, 0], every[:, 1], bins=_CELLS, range=[[0, 1], [0, 1]])
    relative = density.T / max(1e-12, density.mean())
    depot = source.data.blocks[0].demand is not None
    units = {unit_of(np.asarray(block.xy).reshape(-1, 2), rule=block.rule) for block in blocks}
    unit = units.pop() if len(units) == 1 else "file's units"
    return Drawn(_name(source), len(maps), tuple(maps[:_EXAMPLES]), relative, depot, unit)


def _unit(xy: Array) -> Array:
    """As it is where it lies in the unit square, else moved and scaled into it."""
    if xy.min() >= 0 and xy.max() <= 1:
        return xy
    low = xy.min(0)
    return np.asarray((xy - low) / max(1e-12, float((xy.max(0) - low).max())))


def _name(source: Source) -> str:
    sections = source.manifest.sections
    if source.stage == "data":
        return f"{sections['problem']['kind']}{sections['problem']['n']} {sections['problem']['dist']}"
    if source.stage == "attack":
        where = " on each model" if sections.get("set", {}).get("white_box") else ""
        return f"{sections['attack']['kind']} attack{where}"
    return str(sections.get("import", {}).get("names", ["imported"])[0])


def words(data: Sequence[Drawn]) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = [
        f"{one.name}: {one.count} instances, the densest of {_CELLS}x{_CELLS} cells holds "
        f"{one.density.max():.1f} times its even share"
        for one in data
    ]
    return "Where the nodes lie", "; ".join(told) + "."


def draw(data: Sequence[Drawn]) -> Figure:
    """A row per data set: two instances, then the density over all of them."""
    figure, axes = grid(len(data), _EXAMPLES + 1, 2.9, 2.9)
    high = min(8.0, max(2.0, *(float(one.density.max()) for one in data)))
    for row, one in enumerate(data):
        own = one.unit != "map widths"
        # Maps of other extent have other numbers at their axes, which then stand at every row.
        last = row == len(data) - 1 or own
        for column in range(_EXAMPLES):
            ax = axes[row][column]
            if column >= len(one.examples):
                ax.set_axis_off()
                continue
            xy = one.examples[column]
            dots(ax, xy, s=float(np.clip(1500 / len(xy), 6, 28)), color=COLOURS[0], edgecolors="white", linewidths=0.4)
            if one.depot:
                dots(ax, xy[:1], s=70, marker="s", color=INK, edgecolors="white", zorder=4)
            on_map(ax, one.unit, left=column == 0 or own, bottom=last)
            around(ax, xy)
        ax = axes[row][_EXAMPLES]
        shown = ax.imshow(one.density, origin="lower", extent=(0, 1, 0, 1), cmap=SEQUENTIAL, vmin=0, vmax=high)
        on_map(ax, "share of each map" if own else one.unit, left=own, bottom=last)
        ax.set_xticks([0, 0.5, 1])
        ax.set_title(f"all {one.count} instances" if one.count > 1 else "the one instance")
        axes[row][0].set_title(one.name)
        figure.colorbar(shown, ax=ax, label="nodes per even share")
    return figure
