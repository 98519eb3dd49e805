"""How figures look, the same for all: colours everyone can tell apart, sizes, and files whose bytes never change."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, GREY, PALE = "#1a1a1a", "#767676", "#d9d9d9"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7a00")
"""Okabe and Ito's palette, without its black; the yellow darkened so that lines of it show on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
SEQUENTIAL = "cividis"

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "svg.hashsalt": "cnf",
    "svg.fonttype": "path",
    "path.simplify": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made and saved inside look alike, whatever the user's own matplotlib settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in _RC.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]
        yield


def colour(k: int) -> str:
    """The colour of the k-th series."""
    return COLOURS[k % len(COLOURS)]


def marker(k: int) -> str:
    """The marker of the k-th series: colour is never the only difference."""
    return MARKERS[k % len(MARKERS)]


def dash(k: int) -> str:
    """A line style that changes once all colours are used up."""
    return DASHES[k // len(COLOURS) % len(DASHES)]


def logarithmic(axis: Axis) -> None:
    """A logarithmic axis with plain numbers at its ticks, also where what is drawn spans less than a decade."""
    name: str = axis.axis_name  # type: ignore[attr-defined]
    getattr(axis.axes, f"set_{name}scale")("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows x columns axes, each about width x height inches, with nothing clipped or overlapping."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def on_map(ax: Axes, xy_unit: str, *, left: bool, bottom: bool) -> None:
    """Square map axes; numbers only at the outer edges of a grid of maps."""
    ax.set_aspect("equal", adjustable="box")
    ax.grid(False)
    ax.locator_params(nbins=4)
    ax.tick_params(labelleft=left, labelbottom=bottom, length=2)
    if left:
        ax.set_ylabel(f"y ({xy_unit})")
    if bottom:
        ax.set_xlabel(f"x ({xy_unit})")


def around(ax: Axes, *maps: Any) -> None:
    """The axes show all of these maps (n, 2) and a margin: panels with the same maps have the same scale.

    What lies in the unit square, as generated maps do, is shown in all of it.
    """
    low, high = np.min([xy.min(0) for xy in maps], 0), np.max([xy.max(0) for xy in maps], 0)
    if in_unit_square(*maps):
        low, high = np.zeros(2), np.ones(2)
    margin = 0.04 * max(1e-12, float((high - low).max()))
    ax.set_xlim(low[0] - margin, high[0] + margin)
    ax.set_ylim(low[1] - margin, high[1] + margin)


def in_unit_square(*maps: Any) -> bool:
    """Whether no coordinate lies below 0 or above 1."""
    return all(xy.min() >= 0 and xy.max() <= 1 for xy in maps)


def unit_of(*maps: Any, rule: str = "euclid") -> str:
    """What coordinates are given in: generated maps fill the unit square and round nothing, others are a user's."""
    return "map widths" if rule == "euclid" and in_unit_square(*maps) else "file's units"


def at_least(ax: Axes, span: float = 0.1) -> None:
    """The y axis spans so much: gaps that differ by rounding alone are drawn as equal."""
    low, high = ax.get_ylim()
    if high - low < span:
        low = 0.0 if abs(low) < span and low <= 0 else (low + high - span) / 2
        ax.set_ylim(low, low + span)


def level(panels: Sequence[Axes]) -> None:
    """Panels side by side have one scale, at least 0.1 high, where all of them are linear: bars can be compared."""
    for ax in panels:
        at_least(ax)
    if all(ax.get_yscale() == "linear" for ax in panels):
        low, high = (f(ax.get_ylim()[k] for ax in panels) for k, f in ((0, min), (1, max)))
        for ax in panels:
            ax.set_ylim(low, high)


def on_matrix(ax: Axes, values: Any, high: float, marked: Iterable[tuple[int, int]], *, left: bool = True) -> None:
    """A cost matrix in light greys, darker = dearer, with some (from, to) cells marked."""
    ax.imshow(values, cmap="Greys", vmin=0.0, vmax=1.8 * max(high, 1e-12), interpolation="nearest")
    size = max(2.0, 90.0 / len(values))
    for i, j in marked:
        ax.plot(
            j, i, marker="s", markersize=size, color="none", markeredgecolor=COLOURS[1], markeredgewidth=1.8,
            clip_on=False,
        )  # fmt: skip
    ax.grid(False)
    ax.locator_params(integer=True, nbins=5)
    ax.set_xlabel("to node")
    if left:
        ax.set_ylabel("from node")


def dots(ax: Axes, xy: Any, **style: Any) -> None:
    """Nodes (n, 2) as points, whole also where they touch an edge."""
    ax.scatter(xy[:, 0], xy[:, 1], clip_on=False, **style)


def encode(figure: Figure, kind: str) -> bytes:
    """The figure as a PNG or SVG file; equal figures give equal bytes."""
    if figure.get_layout_engine() is not None:
        # Laid out and then fixed: every further pass would move things by a hair. The first pass does not know yet how
        # high axes of equal aspect become.
        figure.draw_without_rendering()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    out = io.BytesIO()
    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(out, format=kind, dpi=150, metadata=metadata, facecolor="white")
    return out.getvalue()
