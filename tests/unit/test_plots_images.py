"""Figures look as they did when somebody last looked at them, within a tolerance."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from cnf_cli import plots
from cnf_cli.plots._style import styled
from tests.unit import plot_kit

BASELINES = Path(__file__).parent.parent / "data" / "figures"
KINDS = ("attack", "curves", "routing", "tours", "tradeoff")
TOLERANCE = 0.02
"""Mean difference of pixels, of 1: fonts and line ends may differ a little between versions of the libraries."""


def picture(kind: str) -> np.ndarray:
    """The figure, small, as pixels."""
    with styled():
        figure = plots.load(kind).draw(plot_kit.every_kind()[kind])
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=40)
    out.seek(0)
    return np.asarray(matplotlib.image.imread(out))[..., :3]


@pytest.mark.parametrize("kind", KINDS)
def test_looks_as_before(kind: str) -> None:
    """The picture equals its baseline in size and, within the tolerance, in colour."""
    now, then = picture(kind), np.asarray(matplotlib.image.imread(BASELINES / f"{kind}.png"))[..., :3]
    assert now.shape == then.shape
    assert float(np.abs(now - then).mean()) < TOLERANCE


def test_another_figure_would_be_noticed() -> None:
    """A picture that changed as much as one kind differs from a blank page is far outside the tolerance."""
    then = np.asarray(matplotlib.image.imread(BASELINES / "routing.png"))[..., :3]
    assert float(np.abs(np.ones_like(then) - then).mean()) > 3 * TOLERANCE


if __name__ == "__main__":
    BASELINES.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        matplotlib.image.imsave(BASELINES / f"{kind}.png", picture(kind))
