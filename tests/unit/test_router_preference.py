"""What the router prefers is written down, and drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnf_cli.defences.pool import CLEAN, GLOBAL, LOCAL
from cnf_cli.defences.routing import Selection, preference
from cnf_cli.plots import routing

KIND = torch.tensor([CLEAN, CLEAN, LOCAL, GLOBAL])


def test_an_even_router_prefers_nothing() -> None:
    """Equal logits give 1 for every kind and model, whichever way the softmax runs."""
    logits = torch.zeros(4, 2)
    for axis in (0, 1):
        told = preference(Selection([], [], logits.log_softmax(axis), axis), KIND)
        assert set(told) == {f"router_{k}_{j}" for k in ("clean", "local", "global") for j in (0, 1)}
        assert list(told.values()) == pytest.approx([1.0] * 6)


def test_preference_is_the_mean_probability_in_multiples_of_an_even_hand() -> None:
    """A model that is given only clean rows prefers them N / 2 times, and nothing else."""
    probability = torch.tensor([[0.5], [0.5], [0.0], [0.0]])
    told = preference(Selection([], [], probability.clamp_min(1e-30).log()), KIND)
    assert told["router_clean_0"] == pytest.approx(2.0)
    assert told["router_local_0"] == pytest.approx(0.0, abs=1e-9)


def test_the_figure_shows_the_router_only_where_one_was_asked() -> None:
    """Runs with a router get one map per model with the logged numbers; runs without get none."""
    line = {"instances": 10, "load_0": 3.0, "load_1": 4.0}
    line |= {f"router_{k}_{j}": 1.0 + j for k in routing.KINDS for j in (0, 1)}
    figure = routing.draw(routing._data("run", [line, line]))
    images = [image for ax in figure.axes for image in ax.get_images()]
    assert len(images) == 2
    np.testing.assert_allclose(images[1].get_array(), np.full((3, 2), 2.0))
    plain = {k: v for k, v in line.items() if not k.startswith("router")}
    assert not [image for ax in routing.draw(routing._data("run", [plain])).axes for image in ax.get_images()]
