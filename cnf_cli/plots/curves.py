"""Training over time: cost, gap of every model and of the ensemble, speed, learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cnf_cli.plots._source import Array, Ask, Sources, percent, run_name, runs
from cnf_cli.plots._style import GREY, INK, colour, grid, marker

READS = ("pretrain", "train_cnf")
FACTS = ("curve",)
_RATES = ("learning rate", "instances per second")


@dataclass(frozen=True)
class Run:
    """One training run: each panel's series over the instances seen."""

    name: str
    instances: Array
    panels: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Axis label -> series name -> values; NaN where unknown."""


def collect(found: Sources, ask: Ask) -> list[Run]:
    """Every training run among the artifacts, in the order they were made."""
    order = {"pretrain": 0, "train_cnf": 1}
    found.need("pretrain", "train_cnf", what="training runs")
    return [_run(run_name(one), lines) for one, lines in sorted(runs(found), key=lambda pair: order[pair[0].stage])]


def _run(name: str, lines: Sequence[dict[str, Any]]) -> Run:
    instances = np.array([line["instances"] for line in lines], float)
    cost = {
        "clean": _series(lines, "pool_clean", "cost"),
        "local adversarial": _series(lines, "pool_local"),
        "global adversarial": _series(lines, "pool_global"),
    }
    gap: dict[str, Array] = {}
    for prefix in ("clean", "adversarial", ""):
        key = f"{prefix}_gap_percent" if prefix else "gap_percent"
        label = prefix or "validation"
        gap[f"{label}, ensemble" if f"{key}_per_model" in lines[-1] else label] = _series(lines, key)
        for j in range(len(lines[-1].get(f"{key}_per_model", ()))):
            gap[f"{label}, model {j}"] = np.array([_item(line, f"{key}_per_model", j) for line in lines])
    seconds = _series(lines, "seconds")
    speed = np.diff(instances, prepend=0.0) / np.maximum(np.diff(seconds, prepend=0.0), 1e-9)
    panels = {
        "mean cost in training": cost,
        "gap on the validation set (%)": gap,
        "instances per second": {"speed": np.where(np.isfinite(seconds), speed, np.nan)},
        "learning rate": {"rate": _series(lines, "lr")},
    }
    known = {label: {n: v for n, v in some.items() if np.isfinite(v).any()} for label, some in panels.items()}
    return Run(name, instances, {label: some for label, some in known.items() if some})


def _series(lines: Sequence[dict[str, Any]], *names: str) -> Array:
    """The first of these numbers that the run wrote down, line by line."""
    name = next((n for n in names if any(n in line for line in lines)), names[0])
    return np.array([line.get(name, np.nan) for line in lines], float)


def _item(line: dict[str, Any], name: str, j: int) -> float:
    values = line.get(name) or ()
    return float(values[j]) if j < len(values) else float("nan")


def words(data: Sequence[Run]) -> tuple[str, str]:
    """A title and what is to be seen."""
    told = []
    for run in data:
        gaps = run.panels.get("gap on the validation set (%)", {})
        ends = [
            f"{name} {percent(values[0])} to {percent(values[-1])}"
            for name, values in gaps.items()
            if "model" not in name and len(values) > 1 and np.isfinite(values[[0, -1]]).all()
        ]
        told.append(f"{run.name}: {run.instances[-1]:,.0f} instances" + (f", {', '.join(ends)}" if ends else ""))
    return "Training", "Gaps from the first to the last validation. " + "; ".join(told) + "."


def draw(data: Sequence[Run]) -> Figure:
    """A column per run, a row per quantity."""
    labels = list(dict.fromkeys(label for run in data for label in run.panels))
    figure, axes = grid(len(labels), len(data), 4.6, 2.3)
    for column, run in enumerate(data):
        for row, label in enumerate(labels):
            ax = axes[row][column]
            if label not in run.panels:
                ax.set_axis_off()
                continue
            _panel(ax, run, label)
            if row == len(labels) - 1:
                ax.set_xlabel("training instances (thousands)")
        axes[0][column].set_title(run.name)
    return figure


def _panel(ax: Axes, run: Run, label: str) -> None:
    series = run.panels[label]
    groups = list(dict.fromkeys(name.partition(",")[0] for name in series))
    for name, values in series.items():
        whole = "model" not in name
        k = groups.index(name.partition(",")[0])
        ax.plot(
            run.instances / 1000, values, color=colour(k) if len(groups) > 1 or label not in _RATES else INK,
            linewidth=1.8 if whole else 0.9, alpha=1.0 if whole else 0.55, linestyle="-" if whole else "--",
            marker=marker(k) if whole and len(values) <= 30 else "", markersize=4,
            label=name if whole else None, drawstyle="steps-pre" if label == "learning rate" else "default",
        )  # fmt: skip
    if any("model" in name for name in series):
        ax.plot([], [], color=GREY, linewidth=0.9, linestyle="--", label="single models")
    ax.set_ylabel(label)
    if label != "mean cost in training":
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    if label == "learning rate":
        ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    if len(series) > 1:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.45 * (high - low))  # room for the legend
        ax.legend(loc="upper right", ncols=2)
