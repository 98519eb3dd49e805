"""Figures of a user's own data: nothing lies outside, nothing is drawn twice, equal things look equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from cnf_cli import plots
from cnf_cli.formats import dataset
from cnf_cli.pipeline.job import Artifact
from cnf_cli.plots import ablation, attack, distributions, tours
from cnf_cli.plots._gaps import Gap, Method
from cnf_cli.plots._source import Ask, Sources, sources
from cnf_cli.plots._style import MARKERS
from cnf_cli.store import Store, make_key
from tests.unit import plot_kit
from tests.unit.plot_kit import SQUARE


def own_map(width: float, height: float, at: tuple[float, float] = (500_000.0, 5_600_000.0)) -> np.ndarray:
    """Twelve stops in metres, far from the unit square."""
    spread = np.random.default_rng(3).random((12, 2))
    return np.array(at) + spread * [width, height]


def own_attack(tmp_path: Path, count: int) -> Sources:
    """What an attack on `count` maps of a user's own made of them: every node moved by a tenth of the map."""
    # As an attack records it, whose map is the policy's: not what the places above would give.
    told = {"moved_mean": np.full(count, 0.125, "f4")}
    tmp_path.mkdir(exist_ok=True)
    xy = np.stack([own_map(9000, 3000) for _ in range(count)])
    names = tuple(f"stops{k}" for k in range(count))
    block = dataset.Block(xy=xy + 500, names=names, extra={"clean_xy": xy, **told})
    dataset.save(tmp_path / "data.h5", dataset.Dataset("tsp", (block,)))
    store = Store(tmp_path / "s")
    sections = {"attack": {"kind": "noise"}}
    about: dict[str, Any] = {"sections": sections, "inputs": {}, "provenance": {}, "checks": {}}
    key = make_key("attack", 1, sections, {})
    made = store.commit(key, {"data.h5": tmp_path / "data.h5"}, stage="attack", version=1, **about)
    return sources([Artifact(store, made)])


def test_attack_on_own_maps_is_seen_whole_and_once(tmp_path: Path) -> None:
    """Every stop lies inside the axes, both maps have one scale, and one instance is one row, whatever was asked."""
    (pair,) = attack.collect(own_attack(tmp_path, 1), Ask(count=4))
    assert pair.name == "noise attack, stops0"
    assert pair.moved == 0.125
    figure = attack.draw([pair])
    clean, hard = figure.axes
    assert (clean.get_xlim(), clean.get_ylim()) == (hard.get_xlim(), hard.get_ylim())
    for ax in (clean, hard):
        for xy in (pair.clean, pair.adversarial):
            assert ((xy > [ax.get_xlim()[0], ax.get_ylim()[0]]) & (xy < [ax.get_xlim()[1], ax.get_ylim()[1]])).all()
        assert "file's units" in ax.get_xlabel()
    assert [p.name for p in attack.collect(own_attack(tmp_path / "b", 3), Ask(count=4))] == [
        f"noise attack, stops{k}" for k in range(3)
    ]


def test_tours_of_own_maps_have_the_files_units() -> None:
    """Metres and degrees are no map widths; a generated map has them."""
    degrees = np.array([[7.1, 50.7], [6.9, 50.9], [6.8, 51.2]])
    for xy, unit in ((degrees, "file's units"), (SQUARE, "map widths")):
        block = dataset.Block(xy=xy[None], names=("a",), cost=np.array([1.0]))
        assert tours._with(block, 0, "a", []).unit == unit


def test_distributions_of_own_maps_have_the_files_units(tmp_path: Path) -> None:
    """Examples stand in the coordinates that were given, their density in shares of each map; no map width is named."""
    (drawn,) = distributions.collect(own_attack(tmp_path, 2), Ask())
    first, second, density, _ = distributions.draw([drawn]).axes
    for ax, xy in zip((first, second), drawn.examples, strict=True):
        assert xy.min() > 400_000
        assert ((xy > [ax.get_xlim()[0], ax.get_ylim()[0]]) & (xy < [ax.get_xlim()[1], ax.get_ylim()[1]])).all()
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x (file's units)", "y (file's units)")
    assert density.get_xlabel() == "x (share of each map)"


def test_equal_routes_have_equal_colours() -> None:
    """The same customers, driven in another order or listed elsewhere, keep their colour; others get those left."""
    first = [[1, 2], [3, 4], [5]]
    assert tours.alike(first, first) == [0, 1, 2]
    assert tours.alike([[5], [2, 1], [4, 3]], first) == [2, 0, 1]
    assert tours.alike([[3, 4, 5], [1, 2]], first) == [1, 0]
    assert tours.alike([[9], [1], [5], [2], [3]], first) == [3, 0, 2, 4, 1]
    scene = plot_kit.route_scene()
    turned = tours.Panel("other", [0, 4, 0, 3, 2, 0, 1], 6.0, 1.25)
    figure = tours.draw([tours.Scene("two", (scene.panels[0], turned), xy=scene.xy, demand=scene.demand)])
    found = [{frozenset(map(tuple, line.get_xydata())): line.get_color() for line in ax.lines} for ax in figure.axes]
    assert found[0] == found[1]


def test_gaps_that_differ_by_rounding_are_drawn_as_equal() -> None:
    """A bar of 1e-14 percent is no bar: the axis goes to a tenth of a percent at least, and panels share it."""
    tiny = {"a": Gap(1e-14, 0.0, 2e-14), "b": Gap(-3e-14, -4e-14, 0.0)}
    figure = ablation.draw(ablation.Data((Method("mine", tiny), Method("other", tiny)), ("a", "b")))
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert all(ax.get_ylim()[1] - ax.get_ylim()[0] >= 0.1 for ax in figure.axes)
    figure = ablation.draw(plot_kit.every_kind()["ablation"])
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert figure.axes[0].get_ylim()[1] > 15


@pytest.mark.parametrize("kind", ["tours", "attack", "sizes", "budget", "tradeoff"])
def test_markers_are_whole_at_the_edges(kind: str) -> None:
    """No marker is cut by the axes that it lies on."""
    figure = plots.load(kind).draw(plot_kit.every_kind()[kind])
    marked = [c for ax in figure.axes for c in ax.collections if isinstance(c, PathCollection)]
    marked += [line for ax in figure.axes for line in ax.lines if line.get_marker() in MARKERS]
    assert marked
    assert not any(artist.get_clip_on() for artist in marked)
