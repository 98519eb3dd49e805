"""Transfer matrix: instances made against one model (rows), solved by each model (columns)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from cnf_cli.plots._source import (
    Array,
    Ask,
    Measured,
    NothingToDraw,
    Source,
    Sources,
    is_adversarial,
    measured,
)
from cnf_cli.plots._style import INK, PALE, SEQUENTIAL, grid

READS = ("evaluate", "label", "attack")
FACTS: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """Mean gaps in percent."""

    attacked: tuple[str, ...]
    solved_by: tuple[str, ...]
    gap: Array
    """(attacked, solved by); NaN where it was not measured."""


def collect(found: Sources, ask: Ask) -> Data:
    """Every adversarial set, cut by the model its instances were made against."""
    cells: dict[tuple[str, str], list[Array]] = {}
    columns: dict[str, None] = {}
    for source in found.need("evaluate", what="adversarial sets in an evaluation"):
        for one in measured(source):
            if not is_adversarial(one.name):
                continue
            attacked = _attacked(found, source, one)
            for k in one.method_ids():
                gap = one.gaps(k)
                for j in range(gap.shape[1]):
                    solver = _model(one.methods[k], j, gap.shape[1])
                    columns[solver] = None
                    for name in dict.fromkeys(attacked):
                        theirs = np.array([other == name for other in attacked])
                        cells.setdefault((name, solver), []).append(gap[theirs, j])
    if not cells:
        raise NothingToDraw("the evaluation has no adversarial set", hint="`cnf evaluate RECIPE` has three")
    rows = list(dict.fromkeys(name for name, _ in cells))
    mean = np.full((len(rows), len(columns)), np.nan)
    for (name, solver), parts in cells.items():
        values = np.concatenate(parts)
        if np.isfinite(values).any():
            mean[rows.index(name), list(columns).index(solver)] = np.nanmean(values)
    return Data(tuple(rows), tuple(columns), mean)


def _attacked(found: Sources, source: Source, one: Measured) -> list[str]:
    """For each instance of a set, the name of the model it was made against."""
    data = found.input_of(source, f"data-{one.index}")
    count = len(one.reference)
    if one.only < 0:
        return [one.methods[0]] * count
    method = one.methods[one.only]
    if data is None or "model" not in data.data.blocks[0].extra:
        return [method] * count
    model = np.concatenate([block.extra["model"] for block in data.data.blocks])[:count]
    total = int(one.costs(one.only).shape[1])
    return [_model(method, int(j), total) for j in model]


def _model(method: str, j: int, total: int) -> str:
    return method if total == 1 else f"{method} model {j}"


def words(data: Data) -> tuple[str, str]:
    """A title and what is to be seen."""
    worst = np.unravel_index(np.nanargmax(data.gap), data.gap.shape)
    told = f"the largest is {data.gap[worst]:.2f}%: made against {data.attacked[worst[0]]}"
    return (
        "Do attacks transfer?",
        f"Mean gaps without the help of the other models; {told}, solved by {data.solved_by[worst[1]]}.",
    )


def draw(data: Data) -> Figure:
    """A coloured cell per pair, its value written into it."""
    rows, columns = data.gap.shape
    figure, axes = grid(1, 1, 2.4 + 0.95 * columns, 1.8 + 0.55 * rows)
    ax = axes[0][0]
    ax.set_facecolor(PALE)
    shown = ax.imshow(
        np.ma.masked_invalid(data.gap), cmap=SEQUENTIAL, aspect="auto", vmin=min(0.0, float(np.nanmin(data.gap)))
    )
    middle = (shown.norm.vmin + shown.norm.vmax) / 2  # type: ignore[operator]
    for i in range(rows):
        for j in range(columns):
            value = data.gap[i, j]
            known = bool(np.isfinite(value))
            text = f"{value:.2f}" if known else "not\nmeasured"
            ax.text(j, i, text, ha="center", va="center", fontsize=9 if known else 7,
                    color="white" if known and value < middle else INK)  # fmt: skip
    ax.set_xticks(range(columns), data.solved_by, rotation=25, ha="right")
    ax.set_yticks(range(rows), data.attacked)
    ax.set_xlabel("solved by")
    ax.set_ylabel("attack made against")
    ax.grid(False)
    figure.colorbar(shown, ax=ax, label="mean gap (%)")
    return figure
