"""Clean instances beside the adversarial ones made from them, weak to strong, each node linked to where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from cnf_cli.formats.dataset import Block
from cnf_cli.plots._source import Array, Ask, NothingToDraw, Source, Sources, instance_name
from cnf_cli.plots._style import COLOURS, GREY, INK, around, dots, grid, on_map, on_matrix, unit_of

READS = ("attack",)
FACTS: tuple[str, ...] = ()
CLEAN, MOVED = COLOURS[0], COLOURS[1]


@dataclass(frozen=True)
class Pair:
    """One clean instance and its adversarial one; demands of all instances attacked about as strongly."""

    name: str
    moved: float
    """Mean move of a node in map widths, as the attack recorded it; of a matrix the mean change of an entry."""
    clean: Array
    adversarial: Array
    """Coordinates (n, 2), or cost matrices (n, n)."""
    demand: tuple[Array, Array] | None = None
    """(n,) units before and after; node 0 is the depot."""
    demands: tuple[Array, Array] | None = None
    """Units before and after of every customer of every such instance."""
    is_map: bool = True


def collect(found: Sources, ask: Ask) -> list[Pair]:
    """Instances from the least to the most changed; of attacks with different settings, one instance each."""
    attacks: dict[str, Source] = {}
    for one in found.need("attack", what="what `cnf attack` made"):
        attacks.setdefault(json.dumps(one.manifest.sections["attack"], sort_keys=True), one)
    count = max(2, ask.count)
    if len(attacks) > 1:
        pairs = [_pairs(one, [0.5])[0] for one in attacks.values()]
        return sorted(pairs, key=lambda pair: pair.moved)[:count]
    return _pairs(next(iter(attacks.values())), [0.03 + 0.94 * k / (count - 1) for k in range(count)])


def _pairs(source: Source, shares: Sequence[float]) -> list[Pair]:
    """Instances at these shares of the order by strength, each once."""
    every = [(block, i) for block in source.data.blocks for i in range(len(block))]
    before, after = zip(*(_states(source, block, i) for block, i in every), strict=True)
    is_map = every[0][0].matrix is None
    if is_map:
        moved = np.array([block.extra["moved_mean"][i] for block, i in every])
    else:
        moved = np.array([np.abs(b - a).mean() for a, b in zip(before, after, strict=True)])
    order = np.argsort(moved, kind="stable")
    width = max(1, len(order) // len(shares))
    out: dict[int, Pair] = {}
    for share in shares:
        at = int(order[min(len(order) - 1, int(share * len(order)))])
        low = min(int(share * len(order)) // width * width, len(order) - width)
        demand, demands = _demands(every, at, order[low : low + width])
        block, i = every[at]
        name = f"{source.manifest.sections['attack']['kind']} attack, {instance_name(block, i, at)}"
        out.setdefault(at, Pair(name, float(moved[at]), before[at], after[at], demand, demands, is_map))
    return list(out.values())


def _states(source: Source, block: Block, i: int) -> tuple[Array, Array]:
    """Coordinates or costs of one instance, clean and adversarial."""
    before = block.extra.get("clean_matrix" if block.matrix is not None else "clean_xy")
    after = block.matrix if block.matrix is not None else block.xy
    if before is None or after is None:
        raise NothingToDraw(f"artifact {source.key[:12]} does not keep the clean instances")
    return before[i], after[i]


def _demands(
    every: Sequence[tuple[Block, int]], at: int, near: Array
) -> tuple[tuple[Array, Array] | None, tuple[Array, Array] | None]:
    chosen = [every[int(k)] for k in (at, *near)]
    rows = [(b.extra["clean_demand"][i], b.demand[i]) for b, i in chosen if b.demand is not None and _has(b)]
    if not _has(every[at][0]):
        return None, None
    was, now = (np.concatenate([row[k][1:] for row in rows[1:]]) for k in (0, 1))
    return rows[0], None if np.allclose(was, now) else (was, now)


def _has(block: Block) -> bool:
    return block.demand is not None and "clean_demand" in block.extra


def words(pairs: Sequence[Pair]) -> tuple[str, str]:
    """A title and what is to be seen."""
    what = "a node of the first moved" if pairs[0].is_map else "the first's costs changed by"
    text = f"{len(pairs)} instances before and after the attack; {what} {_far(pairs[0])} on average"
    text += f", the last's {_far(pairs[-1])}." if len(pairs) > 1 else "."
    if any(pair.demands for pair in pairs):
        text += " On the right the demands of all instances attacked about as strongly, before and after."
    return "What the attack does", text


def _far(pair: Pair) -> str:
    return f"{pair.moved:.3f} map widths" if pair.is_map else f"{pair.moved:.3g} per entry"


def draw(pairs: Sequence[Pair]) -> Figure:
    """A row per instance: clean, adversarial with the moves, and demand histograms where demands changed."""
    columns = 2 + any(pair.demands for pair in pairs)
    figure, axes = grid(len(pairs), columns, 3.1, 3.1)
    for row, pair in enumerate(pairs):
        last = row == len(pairs) - 1
        if pair.is_map:
            _map(axes[row][0], pair, 0)
            _map(axes[row][1], pair, 1)
            unit = unit_of(pair.clean, pair.adversarial)
            for column in (0, 1):
                # Maps of other extent have other numbers at their axes, which then stand at every row.
                on_map(axes[row][column], unit, left=column == 0, bottom=last or unit != "map widths")
        else:
            _matrices(axes[row], pair)
        axes[row][0].set_title(f"{pair.name}\nclean")
        axes[row][1].set_title(f"adversarial\nmean {'move' if pair.is_map else 'change'} {_far(pair)}")
        if columns == 3:
            _histogram(axes[row][2], pair, last)
    return figure


def _map(ax: Axes, pair: Pair, which: int) -> None:
    xy = (pair.clean, pair.adversarial)[which]
    sizes: float | Array = 24.0
    if pair.demand is not None:
        units = pair.demand[which]
        sizes = 10 + 60 * units / max(1e-12, float(units.max()))
    if which == 1:
        dots(ax, pair.clean, s=14, facecolors="none", edgecolors=GREY, linewidths=0.8, label="where it was")
        links = np.stack([pair.clean, pair.adversarial], axis=1)
        ax.add_collection(LineCollection(list(links), colors=GREY, linewidths=0.8, alpha=0.8, label="moves"))
    dots(ax, xy, s=sizes, color=(CLEAN, MOVED)[which], zorder=3, edgecolors="white", linewidths=0.5)
    if pair.demand is not None:
        dots(ax, xy[:1], s=80, marker="s", color=INK, zorder=4, edgecolors="white")
    around(ax, pair.clean, pair.adversarial)


def _matrices(axes: Sequence[Axes], pair: Pair) -> None:
    high = float(max(pair.clean.max(), pair.adversarial.max()))
    changed = [(int(i), int(j)) for i, j in np.argwhere(~np.isclose(pair.clean, pair.adversarial))]
    on_matrix(axes[0], pair.clean, high, ())
    on_matrix(axes[1], pair.adversarial, high, changed, left=False)


def _histogram(ax: Axes, pair: Pair, last: bool) -> None:
    if pair.demands is None:
        ax.set_axis_off()
        return
    high = float(max(values.max() for values in pair.demands))
    edges = np.arange(0.5, high + 1.0) if high <= 60 else np.linspace(0, high, 30)
    for values, label, c in zip(pair.demands, ("clean", "adversarial"), (CLEAN, MOVED), strict=True):
        weights = np.full(len(values), 100.0 / len(values))
        ax.hist(values, bins=list(edges), weights=weights, histtype="stepfilled", alpha=0.35, color=c)
        ax.hist(values, bins=list(edges), weights=weights, histtype="step", color=c, linewidth=1.5, label=label)
    ax.set_title("demands of such instances")
    ax.set_ylabel("customers (%)")
    ax.legend()
    if last:
        ax.set_xlabel("demand (units)")
