"""What the router does over training: kinds of instances each model gets, its load, models against the ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cnf_cli.plots._source import Array, Ask, NothingToDraw, Sources, percent, run_name
from cnf_cli.plots._style import INK, colour, grid, marker

READS = ("train_cnf",)
FACTS = ("curve",)
KINDS = ("clean", "local", "global")
_HATCHES = ("", "//", "..")


@dataclass(frozen=True)
class Data:
    """Shapes: e lines of metrics, m models."""

    name: str
    instances: Array
    """(e,) clean instances seen."""
    shares: Array
    """(e, m, 3), share of each model's training rows that are clean, local and global adversarial."""
    load: Array
    """(e, m), rows per update."""
    preference: Array | None = None
    """(e, m, 3), how likely the router gives a model a row of each kind, in multiples of an even hand."""
    gaps: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    """Set -> last gaps of the models (m,), and of the ensemble over training (e,), percent."""

    @property
    def models(self) -> int:
        return int(self.load.shape[1])


def collect(found: Sources, ask: Ask) -> Data:
    """The last hardening run that wrote down who trained on what."""
    runs = found.need("train_cnf", what="runs of `cnf train-cnf`")
    for source in reversed(runs):
        lines = source.metrics
        if lines and "load_0" in lines[-1]:
            return _data(run_name(source), lines)
    raise NothingToDraw(
        f"the run {runs[-1].key[:12]} did not route instances", hint="--set train.defence=cnf trains with a router"
    )


def _data(name: str, lines: Sequence[dict[str, Any]]) -> Data:
    models = sum(f"load_{j}" in lines[-1] for j in range(64))
    shares = [[[line.get(f"share_{k}_{j}", 0.0) for k in KINDS] for j in range(models)] for line in lines]
    gaps = {}
    for prefix in ("clean", "adversarial"):
        key = f"{prefix}_gap_percent"
        if f"{key}_per_model" in lines[-1]:
            whole = np.array([line.get(key, np.nan) for line in lines], float)
            gaps[prefix] = (np.array(lines[-1][f"{key}_per_model"], float), whole)
    load = np.array([[line[f"load_{j}"] for j in range(models)] for line in lines], float)
    seen = np.array([line["instances"] for line in lines], float)
    likes = [[[line.get(f"router_{k}_{j}", np.nan) for k in KINDS] for j in range(models)] for line in lines]
    asked = "router_clean_0" in lines[-1]
    return Data(name, seen, np.array(shares), load, np.array(likes, float) if asked else None, gaps)


def words(data: Data) -> tuple[str, str]:
    """A title and what is to be seen."""
    last = data.shares[-1]
    told = [f"model {j} trains on {100 * last[j, 0]:.0f}% clean rows" for j in range(data.models)]
    text = f"At the end of {data.name}, " + ", ".join(told) + "."
    for name, (models, whole) in data.gaps.items():
        text += f" On {name} validation instances the best model alone is at {percent(models.min())}"
        text += f", the ensemble at {percent(whole[-1])}."
    return "Who learns from what", text


def draw(data: Data) -> Figure:
    """Top: the mix of each model's training rows over time. Below: loads, models against the ensemble, the router."""
    columns = max(data.models, 2)
    figure, axes = grid(2 if data.preference is None else 3, columns, 3.3, 2.9)
    for j in range(columns):
        if j < data.models:
            _mix(axes[0][j], data, j)
        else:
            axes[0][j].set_axis_off()
    handles, labels = axes[0][0].get_legend_handles_labels()
    axes[0][0].set_ylabel("share of its training rows (%)")
    _loads(axes[1][0], data)
    _gaps(axes[1][1], data)
    for ax in axes[1][2:]:
        ax.set_axis_off()
    if data.preference is not None:
        _preferences(figure, axes[2], data, data.preference)
    place = axes[1][2] if columns > 2 else figure
    where = {"loc": "center"} if columns > 2 else {"loc": "outside lower center", "ncols": 3}
    place.legend(handles, labels, title="kinds of instances", **where)
    return figure


def _mix(ax: Axes, data: Data, j: int) -> None:
    at = np.arange(len(data.instances))
    low = np.zeros(len(at))
    names = ("clean", "local adversarial", "global adversarial")
    for k, name in enumerate(names):
        height = 100 * data.shares[:, j, k]
        ax.bar(at, height, 0.9, bottom=low, color=colour(k), label=name, hatch=_HATCHES[k], edgecolor="white")
        low += height
    step = max(1, len(at) // 4)
    ax.set_xticks(at[::step], [f"{v / 1000:.3g}" for v in data.instances[::step]])
    ax.set_ylim(0, 100)
    ax.set_title(f"model {j}")
    ax.set_xlabel("training instances (thousands)")
    ax.grid(False)


def _preferences(figure: Figure, axes: Sequence[Axes], data: Data, likes: Array) -> None:
    """One map per model: kinds down, time across; white is an even hand, orange more likely than that, purple less."""
    spread = max(0.05, float(np.nanmax(np.abs(likes - 1))))
    for j, ax in enumerate(axes):
        if j >= data.models:
            ax.set_axis_off()
            continue
        image = ax.imshow(likes[:, j].T, aspect="auto", cmap="PuOr_r", vmin=1 - spread, vmax=1 + spread)
        ax.set_yticks(range(3), KINDS if j == 0 else ["", "", ""])
        step = max(1, len(data.instances) // 4)
        at = np.arange(len(data.instances))[::step]
        ax.set_xticks(at, [f"{data.instances[i] / 1000:.3g}" for i in at])
        ax.set_xlabel("training instances (thousands)")
        ax.set_title(f"router: rows for model {j}")
        ax.grid(False)
    figure.colorbar(image, ax=list(axes), label="probability (1 = even)", shrink=0.8)


def _loads(ax: Axes, data: Data) -> None:
    for j in range(data.models):
        ax.plot(
            data.instances / 1000, data.load[:, j], color=colour(j), marker=marker(j), markersize=4, label=f"model {j}"
        )
    ax.set_ylim(0, 1.15 * max(1.0, float(data.load.max())))
    ax.set_xlabel("training instances (thousands)")
    ax.set_ylabel("training rows per update")
    ax.set_title("load")
    ax.legend(loc="lower right")


def _gaps(ax: Axes, data: Data) -> None:
    if not data.gaps:
        ax.set_axis_off()
        return
    width = 0.8 / (data.models + 1)
    for s, (models, whole) in enumerate(data.gaps.values()):
        for j, gap in enumerate(models):
            ax.bar(s + j * width, gap, 0.9 * width, color=colour(j), label=f"model {j}" if s == 0 else None)
        label = "ensemble" if s == 0 else None
        ax.bar(s + len(models) * width, whole[-1], 0.9 * width, color=INK, label=label)
    middle = 0.5 * width * data.models
    ax.set_xticks([s + middle for s in range(len(data.gaps))], list(data.gaps))
    ax.set_ylabel("gap without augmentation (%)")
    ax.set_title("each model and the ensemble")
    ax.margins(y=0.45)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", ncols=2)
