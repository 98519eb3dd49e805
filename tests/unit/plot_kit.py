"""Small data for every kind of figure, made by hand so that tests know what must be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnf_cli.plots import ablation, attack, budget, curves, distributions, routing, sizes, tours, tradeoff, transfer
from cnf_cli.plots._gaps import Gap, Method

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
METHODS = (
    Method("pretrained(1)", {"clean (uniform)": Gap(0.5, 0.4, 0.7), "fixed adversarial": Gap(12.0, 10.0, 15.0)}),
    Method("cnf(3)", {"clean (uniform)": Gap(0.4, 0.3, 0.5), "fixed adversarial": Gap(3.0, 2.5, 3.5)}),
)


def tour_scene() -> tours.Scene:
    """A unit square whose reference goes round, and a method that crosses over."""
    crossing = 2 + 2 * 2**0.5
    panels = (
        tours.Panel("reference (exact)", [0, 1, 2, 3], 4.0, None),
        tours.Panel("crossing", [0, 2, 1, 3], crossing, 100 * (crossing / 4 - 1)),
    )
    return tours.Scene("four corners", panels, xy=SQUARE)


def route_scene() -> tours.Scene:
    """A depot in the middle and three vehicles."""
    xy = np.array([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    panel = tours.Panel("hgs", [0, 1, 0, 2, 3, 0, 4], 6.0, 1.25)
    return tours.Scene("vehicles", (panel,), xy=xy, demand=np.array([0.0, 1, 2, 3, 4]))


def matrix_scene() -> tours.Scene:
    """Three nodes with a cost each way."""
    matrix = np.array([[0.0, 1, 5], [5, 0, 1], [1, 5, 0]])
    return tours.Scene("one way", (tours.Panel("exact", [0, 1, 2], 3.0, 0.0),), matrix=matrix)


def pairs() -> list[attack.Pair]:
    """A weak and a strong attack; the strong one changes demands too."""
    rng = np.random.default_rng(0)
    before = rng.random((12, 2))
    weak, strong = before + 0.01, np.clip(before + 0.3 * rng.standard_normal((12, 2)), 0, 1)
    demand = np.array([0.0, *rng.integers(1, 10, 11)])
    changed = np.array([0.0, *rng.integers(1, 10, 11)])
    return [
        attack.Pair("noise attack, instance 0", 0.01, before, weak, (demand, demand)),
        attack.Pair("noise attack, instance 1", 0.3, before, strong, (demand, changed), (demand[1:], changed[1:])),
    ]


def matrix_pair() -> attack.Pair:
    """An attack that changed two entries of a matrix."""
    before = np.random.default_rng(0).random((6, 6))
    after = before.copy()
    after[1, 2], after[4, 0] = 0.0, 2.0
    return attack.Pair("roco attack, instance 0", 0.05, before, after, is_map=False)


def training_lines() -> list[dict[str, Any]]:
    """What a hardening run of two models writes down."""
    lines = []
    for e in (1, 2, 3):
        line: dict[str, Any] = {"instances": 1000 * e, "seconds": 10.0 * e, "lr": 1e-3 if e < 3 else 1e-4}
        line |= {"pool_clean": 4.0 - 0.1 * e, "pool_local": 5.0 - 0.1 * e, "pool_global": 5.1 - 0.1 * e}
        for j in (0, 1):
            line |= {f"load_{j}": 30.0 + j, f"share_clean_{j}": 0.2, f"share_local_{j}": 0.5, f"share_global_{j}": 0.3}
        line |= {"clean_gap_percent": 1.0 / e, "clean_gap_percent_per_model": [1.5 / e, 1.2 / e]}
        line |= {"adversarial_gap_percent": 4.0 / e, "adversarial_gap_percent_per_model": [5.0 / e, 6.0 / e]}
        lines.append(line)
    return lines


def every_kind() -> dict[str, Any]:
    """Kind -> what its `draw` takes."""
    rng = np.random.default_rng(1)
    nodes = np.array([20, 20, 50, 50, 100, 100])
    maps = [rng.random((20, 2)) for _ in range(2)]
    density = rng.random((25, 25))
    lines = training_lines()
    return {
        "tours": [tour_scene(), tour_scene()],
        "attack": pairs(),
        "tradeoff": tradeoff.Data(METHODS, "clean (uniform)", ("fixed adversarial",)),
        "ablation": ablation.Data(METHODS, ("clean (uniform)", "fixed adversarial")),
        "curves": [curves._run("cnf(2) on TSP20", lines), curves._run("pretraining", [{"instances": 9, "cost": 4.0}])],
        "routing": routing._data("cnf(2) on TSP20", lines),
        "sizes": [
            sizes.Points("tsplib", "pretrained(1)", nodes, np.array([1.0, 3, 2, 4, 8, 9])),
            sizes.Points("tsplib", "cnf(3)", nodes, np.array([1.0, 1, 2, 2, 3, 4])),
        ],
        "budget": [budget._line("fixed adversarial", "cnf(3)", rng.random(40), rng.random(40))],
        "transfer": transfer.Data(("a", "b model 0"), ("a", "b model 0"), np.array([[12.0, 3.25], [np.nan, 4.5]])),
        "distributions": [distributions.Drawn("tsp20 uniform", 50, tuple(maps), density / density.mean(), False)],
    }
