"""Instances with the tours of every method and of the reference side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from cnf_cli.formats.dataset import Block
from cnf_cli.plots._source import (
    Array,
    Ask,
    Measured,
    NothingToDraw,
    Sources,
    choose,
    instance_name,
    is_adversarial,
    measured,
    percent,
    short_set,
    tour_of,
)
from cnf_cli.plots._style import (
    COLOURS,
    GREY,
    INK,
    around,
    colour,
    dash,
    dots,
    grid,
    on_map,
    on_matrix,
    unit_of,
)

READS = ("evaluate", "label")
FACTS: tuple[str, ...] = ()
DIFFERENT = COLOURS[1]


@dataclass(frozen=True)
class Panel:
    """One tour of the scene's instance."""

    method: str
    tour: list[int]
    cost: float
    gap: float | None
    """Percent above the reference; None for the reference itself and where it is unknown."""

    @property
    def title(self) -> str:
        gap = "" if self.gap is None else f", gap {percent(self.gap)}"
        return f"{self.method}\ncost {self.cost:.4g}{gap}"


@dataclass(frozen=True)
class Scene:
    """One instance with several tours of it."""

    name: str
    panels: tuple[Panel, ...]
    xy: Array | None = None
    demand: Array | None = None
    matrix: Array | None = None
    unit: str = "map widths"


def collect(found: Sources, ask: Ask) -> list[Scene]:
    """The instances on which the first method does worst, of the first adversarial set if there is one."""
    evaluations = found.of("evaluate")
    if not evaluations:
        return _labelled(found, ask)
    sets = [one for one in measured(evaluations[0]) if one.blocks]
    shared = [one for one in sets if one.only < 0] or sets
    chosen = next((one for one in shared if is_adversarial(one.name)), shared[0])
    every = chosen.instances()
    return [_scene(chosen, *every[row], row) for row in choose(chosen, ask)]


def _scene(found: Measured, block: Block, i: int, row: int) -> Scene:
    panels = []
    known = block.cost is not None and np.isfinite(block.cost[i])
    reference = float(block.cost[i]) if known and block.cost is not None else None
    tour = block.tour_of(i)
    if tour and reference is not None:
        panels.append(Panel(f"reference ({found.solver})", tour, reference, None))
    for k in found.method_ids():
        costs = block.extra[f"cost_{k}"][i]
        best = int(costs.argmin())
        gap = None if reference is None else 100.0 * (float(costs[best]) / reference - 1.0)
        panels.append(Panel(found.methods[k], tour_of(block.extra[f"tour_{k}"][i, best]), float(costs[best]), gap))
    name = f"{short_set(found.name)}: {instance_name(block, i, row)}"
    return _with(block, i, name, panels)


def _with(block: Block, i: int, name: str, panels: Sequence[Panel]) -> Scene:
    unit = "file's units" if block.xy is None else unit_of(block.xy[i], rule=block.rule)
    demand = None if block.demand is None else block.demand[i]
    matrix = None if block.matrix is None else block.matrix[i]
    return Scene(name, tuple(panels), None if block.xy is None else block.xy[i], demand, matrix, unit)


def _labelled(found: Sources, ask: Ask) -> list[Scene]:
    """Reference tours alone."""
    source = found.need("evaluate", "label", what="the tours of an evaluation or of labelled data")[0]
    scenes: list[Scene] = []
    for row, (block, i) in enumerate(source.data.instances()):
        tour = block.tour_of(i)
        if tour and block.cost is not None and len(scenes) < ask.count:
            panel = Panel(f"reference ({source.data.solver})", tour, float(block.cost[i]), None)
            scenes.append(_with(block, i, instance_name(block, i, row), [panel]))
    if not scenes:
        raise NothingToDraw("no instance of this data set has a reference tour", hint="`cnf label ID` finds them")
    return scenes


def words(scenes: Sequence[Scene]) -> tuple[str, str]:
    """A title and what is to be seen."""
    parts = []
    for scene in scenes:
        told = [f"{p.method} {percent(p.gap)}" for p in scene.panels if p.gap is not None]
        parts.append(f"{scene.name}: " + (", ".join(told) + " above the reference" if told else "reference tour"))
    legs = any(scene.demand is None and scene.xy is not None and len(scene.panels) > 1 for scene in scenes)
    note = " Legs that the reference does not take are orange." if legs else ""
    return "The hardest instance" if len(scenes) == 1 else "Tours of the hardest instances", ". ".join(
        parts
    ) + "." + note


def draw(scenes: Sequence[Scene]) -> Figure:
    """A row per instance, a column per method; costs and gaps stand above each tour."""
    columns = max(len(scene.panels) for scene in scenes)
    figure, axes = grid(len(scenes), columns, 3.0, 3.35)
    for row, scene in enumerate(scenes):
        for column, ax in enumerate(axes[row]):
            if column >= len(scene.panels):
                ax.set_axis_off()
                continue
            panel = scene.panels[column]
            if scene.xy is not None:
                _draw_map(ax, scene, panel)
                on_map(ax, scene.unit, left=column == 0, bottom=row == len(scenes) - 1)
            else:
                assert scene.matrix is not None
                on_matrix(ax, scene.matrix, float(scene.matrix.max()), _legs(panel.tour), left=column == 0)
            ax.set_title(f"{scene.name}\n{panel.title}" if column == 0 else f"\n{panel.title}")
    return figure


def _draw_map(ax: Axes, scene: Scene, panel: Panel) -> None:
    assert scene.xy is not None
    xy = scene.xy
    if scene.demand is None:
        reference = _legs(scene.panels[0].tour)
        legs = _legs(panel.tour)
        different = [leg for leg in legs if frozenset(leg) not in {frozenset(r) for r in reference}]
        same = [leg for leg in legs if leg not in different]
        ax.add_collection(LineCollection([xy[list(leg)] for leg in same], colors=INK, linewidths=1.3, label="same"))
        ax.add_collection(
            LineCollection([xy[list(leg)] for leg in different], colors=DIFFERENT, linewidths=2.2, label="different")
        )
        dots(ax, xy, s=_dot(len(xy)), color=COLOURS[0], zorder=3, edgecolors="white", linewidths=0.5)
    else:
        found = routes(panel.tour)
        for r, route in zip(alike(found, routes(scene.panels[0].tour)), found, strict=True):
            ax.plot(*xy[[0, *route, 0]].T, color=colour(r), linestyle=dash(r), linewidth=1.5, zorder=2)
        size = 12 + 70 * scene.demand[1:] / max(1e-12, float(scene.demand.max()))
        dots(ax, xy[1:], s=size, color=GREY, zorder=3, edgecolors="white", linewidths=0.5)
        dots(ax, xy[:1], s=90, marker="s", color=INK, zorder=4, edgecolors="white")
    around(ax, xy)


def _legs(tour: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(tour, [*tour[1:], tour[0]], strict=True))


def routes(tour: Sequence[int]) -> list[list[int]]:
    """The customers of each vehicle in a tour whose routes are separated by the depot, node 0."""
    out: list[list[int]] = [[]]
    for node in tour:
        if node:
            out[-1].append(node)
        elif out[-1]:
            out.append([])
    return [route for route in out if route]


def alike(found: Sequence[Sequence[int]], first: Sequence[Sequence[int]]) -> list[int]:
    """A number for each route: that of the route of the first tour with which it shares most, each given once."""
    shared = [(len({*a} & {*b}) / len({*a} | {*b}), -k, -r) for k, a in enumerate(found) for r, b in enumerate(first)]
    numbers: dict[int, int] = {}
    for share, k, r in sorted(shared, reverse=True):
        if share and -k not in numbers and -r not in numbers.values():
            numbers[-k] = -r
    free = (r for r in range(len(first) + len(found)) if r not in set(numbers.values()))
    return [numbers[k] if k in numbers else next(free) for k in range(len(found))]


def _dot(nodes: int) -> float:
    return float(np.clip(1200 / nodes, 8, 40))
