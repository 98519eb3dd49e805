"""Gap on clean instances against gap on adversarial ones, one point per method with its 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cnf_cli.plots._gaps import Method, methods_of, sets_of
from cnf_cli.plots._source import Ask, NothingToDraw, Sources, percent
from cnf_cli.plots._style import colour, grid, marker

READS = ("evaluate",)
FACTS: tuple[str, ...] = ()
_LOG_FROM = 20.0
"""Ratio of the largest to the smallest gap from which an axis is logarithmic."""


@dataclass(frozen=True)
class Data:
    """Methods, the clean set on the horizontal axis, and one panel for each adversarial set."""

    methods: tuple[Method, ...]
    clean: str
    adversarial: tuple[str, ...]


def collect(found: Sources, ask: Ask) -> Data:
    """Every method that was measured on a clean and an adversarial set."""
    methods = methods_of(found)
    clean, adversarial = sets_of(methods)
    if not clean or not adversarial:
        raise NothingToDraw(
            "the evaluation has no clean or no adversarial set", hint="`cnf evaluate RECIPE` measures both"
        )
    return Data(tuple(methods), clean[0], tuple(adversarial))


def words(data: Data) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = []
    for method in data.methods:
        if data.clean in method.gaps and data.adversarial[0] in method.gaps:
            clean, hard = method.gaps[data.clean].mean, method.gaps[data.adversarial[0]].mean
            told.append(f"{method.name} {percent(clean)} clean, {percent(hard)} attacked")
    return "Accuracy against robustness", "Lower left is better. " + "; ".join(told) + "."


def draw(data: Data) -> Figure:
    """One panel per adversarial set."""
    figure, axes = grid(1, len(data.adversarial), 4.2, 3.6)
    for ax, name in zip(axes[0], data.adversarial, strict=True):
        _panel(ax, data, name)
    return figure


def _panel(ax: Axes, data: Data, name: str) -> None:
    shown = [(k, m) for k, m in enumerate(data.methods) if data.clean in m.gaps and name in m.gaps]
    for k, method in shown:
        x, y = method.gaps[data.clean], method.gaps[name]
        ax.errorbar(
            x.mean, y.mean, xerr=[[x.mean - x.low], [x.high - x.mean]], yerr=[[y.mean - y.low], [y.high - y.mean]],
            marker=marker(k), markersize=8, color=colour(k), capsize=3, clip_on=False, linestyle="none",
            label=method.name,
        )  # fmt: skip
    ax.set_xlabel(f"gap on {data.clean} (%)")
    ax.set_ylabel(f"gap on {name} (%)")
    _scale(ax, [m for _, m in shown], data.clean, "x")
    _scale(ax, [m for _, m in shown], name, "y")
    ax.legend(loc="best")


def _scale(ax: Axes, methods: Sequence[Method], name: str, axis: str) -> None:
    """From zero, or logarithmic where the methods lie far apart."""
    lows = [method.gaps[name].low for method in methods]
    highs = [method.gaps[name].high for method in methods]
    if lows and min(lows) > 0 and max(highs) / min(lows) > _LOG_FROM:
        (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    elif lows and min(lows) >= 0 and max(highs) > 0:
        (ax.set_xlim if axis == "x" else ax.set_ylim)(0, 1.15 * max(highs))
