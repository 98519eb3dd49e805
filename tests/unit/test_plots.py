"""Figures draw the data they are given, with nothing clipped, and the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from cnf_cli import plots
from cnf_cli.errors import RecipeError
from cnf_cli.plots import ablation, attack, curves, routing, sizes, tours, tradeoff, transfer
from cnf_cli.plots._gaps import Gap, Method
from cnf_cli.plots._style import COLOURS, encode, styled
from tests.conftest import ROOT
from tests.unit import plot_kit

KINDS = plot_kit.every_kind()


def drawn(kind: str, data: Any = None) -> Figure:
    with styled():
        figure: Figure = plots.load(kind).draw(KINDS[kind] if data is None else data)
    return figure


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_every_figure_file_is_found() -> None:
    """Each kind the issue asks for is there, says what it shows, and reads some stage."""
    assert plots.kinds() == tuple(sorted(KINDS))
    for kind in plots.kinds():
        assert len(plots.summary(kind)) > 20
        assert plots.load(kind).READS


def test_listing_needs_no_matplotlib() -> None:
    """The list of kinds is read from the files, so `cnf visualize --list` stays fast."""
    code = "import sys; from cnf_cli import plots; list(map(plots.summary, plots.kinds()))"
    code += "; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False"


def test_unknown_kind_gets_a_hint() -> None:
    """A misspelt kind is an error that names the right one."""
    with pytest.raises(RecipeError) as error:
        plots.load("tour")
    assert "tours" in str(error.value.hint)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_same_data_same_bytes(kind: str) -> None:
    """PNG and SVG are byte-stable, in any order of saving, so that figures can be artifacts."""
    with styled():
        first, second = drawn(kind), drawn(kind)
        png, svg = encode(first, "png"), encode(first, "svg")
        assert encode(second, "svg") == svg
        assert encode(second, "png") == png
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg
    assert b"matplotlib.org" not in svg.split(b"<defs>")[-1]


OTHERS = {
    "tours of vehicles": [plot_kit.route_scene()],
    "tours of matrices": [plot_kit.matrix_scene(), plot_kit.matrix_scene()],
    "attack on a matrix": [plot_kit.matrix_pair()],
}


@pytest.mark.parametrize("kind", [*sorted(KINDS), *OTHERS])
def test_nothing_is_clipped(kind: str) -> None:
    """Everything drawn, words above all, lies inside the picture."""
    with styled():
        figure = drawn(kind.split()[0], OTHERS.get(kind))
        encode(figure, "png")
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def test_clipped_text_would_be_noticed() -> None:
    """The check above fails for a title that is too long for its figure."""
    with styled():
        figure = drawn("tradeoff")
        encode(figure, "png")
        figure.axes[0].set_title("much too long " * 10)
        figure.draw_without_rendering()
        assert figure.get_tightbbox().x1 > figure.get_size_inches()[0] + 0.01


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_words_fit_the_data(kind: str) -> None:
    """Every figure has a title and a caption, and numbers in the caption are finite."""
    title, caption = plots.load(kind).words(KINDS[kind])
    assert title
    assert len(caption) > 30
    assert "nan" not in caption


def test_tours_show_costs_gaps_and_wrong_legs() -> None:
    """Titles carry cost and gap; nodes are where they are; legs the reference does not take are coloured."""
    figure = drawn("tours", [plot_kit.tour_scene()])
    reference, crossing = figure.axes
    assert reference.get_title() == "four corners\nreference (exact)\ncost 4"
    assert crossing.get_title() == "\ncrossing\ncost 4.828, gap 20.7%"
    nodes = next(c for c in crossing.collections if isinstance(c, PathCollection))
    assert np.allclose(nodes.get_offsets(), plot_kit.SQUARE)
    legs = {c.get_label(): c for c in crossing.collections if isinstance(c, LineCollection)}
    assert len(legs["same"].get_segments()) == 2
    assert len(legs["different"].get_segments()) == 2
    assert to_hex(legs["different"].get_colors()[0]) == COLOURS[1]
    assert len({c.get_label(): c for c in reference.collections}["different"].get_segments()) == 0  # type: ignore[attr-defined]


def test_routes_have_own_colours_and_demands_sizes() -> None:
    """Each vehicle's route starts and ends at the depot in its own colour; larger demands are larger points."""
    figure = drawn("tours", [plot_kit.route_scene()])
    lines = figure.axes[0].lines
    assert len(lines) == 3
    assert len({line.get_color() for line in lines}) == 3
    for line in lines:
        assert np.allclose(line.get_xydata()[[0, -1]], 0.5)
    customers, depot = figure.axes[0].collections
    assert (np.diff(customers.get_sizes()) > 0).all()  # type: ignore[attr-defined]
    assert np.allclose(depot.get_offsets(), [[0.5, 0.5]])


def test_many_routes_differ_in_colour_or_line() -> None:
    """With more vehicles than colours, line styles tell them apart."""
    xy = np.random.default_rng(0).random((12, 2))
    tour = [v for k in range(1, 12) for v in (0, k)]
    panel = tours.Panel("x", tour, 1.0, None)
    scene = tours.Scene("many", (panel,), xy=xy, demand=np.r_[0.0, np.ones(11)])
    lines = drawn("tours", [scene]).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 11


def test_matrix_marks_the_tours_cells() -> None:
    """An instance without coordinates is its matrix, the cells of the tour's legs marked at (to, from)."""
    ax = drawn("tours", [plot_kit.matrix_scene()]).axes[0]
    marked = {tuple(int(v) for v in line.get_xydata()[0]) for line in ax.lines}
    assert marked == {(1, 0), (2, 1), (0, 2)}
    assert ax.get_xlabel() == "to node"
    assert "gap 0.00%" in ax.get_title()


def test_attack_links_each_node_to_where_it_was() -> None:
    """Links run from the clean to the adversarial place; histograms count every customer once."""
    weak, strong = plot_kit.pairs()
    figure = drawn("attack", [weak, strong])
    moved = figure.axes[4]
    links = next(c for c in moved.collections if isinstance(c, LineCollection)).get_segments()
    assert np.allclose(links, np.stack([strong.clean, strong.adversarial], 1))
    assert "0.300 map widths" in moved.get_title()
    bars = [patch for patch in figure.axes[5].patches if patch.get_label() in ("clean", "adversarial")]
    assert len(bars) == 2
    for patch in bars:
        assert np.isclose(_area(patch.get_xy()), 100.0)  # type: ignore[attr-defined]
    assert attack.words([weak, strong])[1].count("map widths") == 2


def test_attack_marks_changed_entries() -> None:
    """On a matrix exactly the entries that the attack changed are marked, at (to, from)."""
    clean, changed = drawn("attack", [plot_kit.matrix_pair()]).axes
    assert not clean.lines
    assert {tuple(int(v) for v in line.get_xydata()[0]) for line in changed.lines} == {(2, 1), (0, 4)}


def _area(outline: Any) -> float:
    x, y = np.asarray(outline).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def test_tradeoff_points_and_intervals() -> None:
    """A point is at (clean gap, adversarial gap), its bars end where the intervals do; far methods need a log axis."""
    figure = drawn("tradeoff")
    ax = figure.axes[0]
    points = [line.get_xydata()[0] for line in ax.lines if line.get_marker() in ("o", "s")]
    assert np.allclose(points, [[0.5, 12.0], [0.4, 3.0]])
    ends = np.concatenate([s for c in ax.collections if isinstance(c, LineCollection) for s in c.get_segments()])
    assert {0.4, 0.7}.issubset(set(np.round(ends[:, 0], 6)))
    assert {10.0, 15.0}.issubset(set(np.round(ends[:, 1], 6)))
    assert ax.get_yscale() == "linear"
    far = Method("far", {"clean (uniform)": Gap(0.5, 0.4, 0.6), "fixed adversarial": Gap(80.0, 70.0, 90.0)})
    data = tradeoff.Data((*plot_kit.METHODS, far), "clean (uniform)", ("fixed adversarial",))
    assert drawn("tradeoff", data).axes[0].get_yscale() == "log"


def test_ablation_bars_are_as_high_as_the_gaps() -> None:
    """Bars have the gaps' heights and say them."""
    figure = drawn("ablation")
    heights = [patch.get_height() for ax in figure.axes for patch in ax.patches]  # type: ignore[attr-defined]
    assert heights == [0.5, 0.4, 12.0, 3.0]
    assert {"0.50%", "0.40%", "12.0%", "3.00%"}.issubset(texts(figure))
    assert "cnf(3) with 3.00%" in ablation.words(KINDS["ablation"])[1]


def test_curves_show_speed_rate_and_every_model() -> None:
    """Speed is instances per training second; models are dashed beside the ensemble; rates step down."""
    run = curves._run("x", plot_kit.training_lines())
    assert np.allclose(run.panels["instances per second"]["speed"], 100.0)
    assert np.allclose(run.panels["learning rate"]["rate"], [1e-3, 1e-3, 1e-4])
    assert np.allclose(run.panels["gap on the validation set (%)"]["adversarial, model 1"], [6.0, 3.0, 2.0])
    figure = drawn("curves", [run])
    gap = next(ax for ax in figure.axes if ax.get_ylabel().startswith("gap"))
    dashed = [line for line in gap.lines if line.get_linestyle() == "--" and len(line.get_xydata())]
    assert len(dashed) == 4
    assert figure.axes[-1].get_xlabel() == "training instances (thousands)"
    assert np.allclose(gap.lines[0].get_xdata(), [1, 2, 3])


def test_curves_without_times_leave_speed_out() -> None:
    """A run of which only metrics.jsonl is known still draws."""
    run = curves._run("x", [{"instances": 10, "cost": 4.0, "lr": 1e-4}])
    assert set(run.panels) == {"mean cost in training", "learning rate"}


def test_routing_mix_adds_up() -> None:
    """Each bar of a model's mix is 100% high in the given parts; the ensemble's bar is its last gap."""
    data = routing._data("x", plot_kit.training_lines())
    figure = drawn("routing", data)
    bars = figure.axes[0].patches
    tops = [bar.get_y() + bar.get_height() for bar in bars[-3:]]  # type: ignore[attr-defined]
    assert np.allclose(tops, 100)
    assert np.allclose([bar.get_height() for bar in bars[:3]], 20)  # type: ignore[attr-defined]
    gaps = next(ax for ax in figure.axes if "ensemble" in ax.get_title())
    heights = [round(bar.get_height(), 6) for bar in gaps.patches]  # type: ignore[attr-defined]
    assert heights == [0.5, 0.4, round(1 / 3, 6), round(5 / 3, 6), 2.0, round(4 / 3, 6)]


def test_sizes_average_each_size() -> None:
    """The line goes through the mean gap of each size; all instances are points."""
    points = KINDS["sizes"][0]
    at, gap = sizes.means(points)
    assert at.tolist() == [20, 50, 100]
    assert gap.tolist() == [2.0, 3.0, 8.5]
    ax = drawn("sizes").axes[0]
    assert np.allclose(ax.lines[0].get_ydata(), gap)
    assert len(ax.collections[0].get_offsets()) == 6
    assert sizes.thin([sizes.Points("s", "m", np.array([20, 20]), np.ones(2))])
    assert not sizes.thin([points])


def test_transfer_says_what_was_not_measured() -> None:
    """Cells carry their values; a cell nobody measured says so instead of looking like zero."""
    figure = drawn("transfer")
    assert {"12.00", "3.25", "4.50", "not\nmeasured"}.issubset(texts(figure))
    assert "made against a, solved by a" in transfer.words(KINDS["transfer"])[1]


def test_style_does_not_leak() -> None:
    """The user's own matplotlib settings are as before, and do not change ours."""
    import matplotlib

    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        with styled():
            one = encode(drawn("tradeoff"), "png")
        assert matplotlib.rcParams["font.size"] == 31.0
    with styled():
        assert encode(drawn("tradeoff"), "png") == one
