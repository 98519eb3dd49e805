"""Every figure file keeps the same promises: it says what it reads and shows, refuses politely, and changes nothing."""

from __future__ import annotations

import copy
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.figure import Figure

from cnf_cli import plots
from cnf_cli.plots._source import Ask, NothingToDraw, sources
from cnf_cli.plots._style import encode, styled
from cnf_cli.stages.table import STAGES
from tests.conftest import ROOT
from tests.unit import plot_kit

KINDS = plots.kinds()
DATA = plot_kit.every_kind()
"""What each `draw` takes, made by hand; a new figure must have an entry here."""


def leaves(data: Any) -> Iterator[Any]:
    """All arrays, numbers and texts in what a figure draws."""
    if isinstance(data, dict):
        for value in data.values():
            yield from leaves(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from leaves(value)
    elif hasattr(data, "__dataclass_fields__"):
        for name in data.__dataclass_fields__:
            yield from leaves(getattr(data, name))
    else:
        yield data


def same(a: Any, b: Any) -> bool:
    """Whether two such collections hold the same values."""
    pairs = list(zip(list(leaves(a)), list(leaves(b)), strict=True))
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f") for x, y in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_describes_itself(kind: str) -> None:
    """A file says in one line what it shows, which stages it reads, and which facts of provenance; data to try it."""
    module = plots.load(kind)
    assert kind in DATA, f"give plot_kit.every_kind() data for '{kind}'"
    assert plots.summary(kind).endswith(".")
    assert set(module.READS) <= {stage.name for stage in STAGES}
    assert module.READS
    assert isinstance(module.FACTS, tuple)
    takes = {name: len(inspect.signature(getattr(module, name)).parameters) for name in ("collect", "words", "draw")}
    assert takes == {"collect": 2, "words": 1, "draw": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_draw_is_said(kind: str) -> None:
    """Without artifacts, and with artifacts of another stage, the error says what is missing and what to do."""
    other = SimpleNamespace(manifest=SimpleNamespace(key="0" * 64, stage="zoo", inputs={}, provenance={}, sections={}))
    for given in ([], [other]):
        with pytest.raises(NothingToDraw) as error:
            plots.load(kind).collect(sources(given), Ask())
        assert error.value.message
        assert error.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_changes_nothing(kind: str) -> None:
    """`draw` and `words` leave their data as it was, and no figure open behind them."""
    data = DATA[kind]
    before = copy.deepcopy(data)
    opened = matplotlib.pyplot.get_fignums()
    with styled():
        figure = plots.load(kind).draw(data)
    plots.load(kind).words(data)
    assert isinstance(figure, Figure)
    assert same(before, data)
    assert matplotlib.pyplot.get_fignums() == opened


@pytest.mark.parametrize("kind", KINDS)
def test_axes_are_named_and_hold_something(kind: str) -> None:
    """Something is drawn, each axis with numbers has a name in its row or column, and no label says nan."""
    with styled():
        figure = plots.load(kind).draw(DATA[kind])
        encode(figure, "png")
    shown = [ax for ax in figure.axes if ax.get_visible() and ax.axison]
    assert all(ax.has_data() for ax in shown)
    words = [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_visible()]
    assert any(words)
    assert not [word for word in words if word.strip().lower() in ("nan", "inf", "none")]
    for ax in figure.axes:
        for low, high in (ax.get_xlim(), ax.get_ylim()):
            assert np.isfinite([low, high]).all()
            assert low != high


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_json(kind: str) -> None:
    """Title and caption are plain text of one paragraph, without a value that is no number."""
    title, caption = plots.load(kind).words(DATA[kind])
    assert json.loads(json.dumps([title, caption])) == [title, caption]
    assert "\n" not in title + caption
    assert title
    assert caption.endswith(".")
    assert "nan" not in caption.lower().split()


def test_another_process_draws_the_same_bytes() -> None:
    """Figures are artifacts: a fresh interpreter with another hash seed gives every kind's SVG to the byte."""
    code = (
        "import hashlib\nfrom cnf_cli import plots\nfrom cnf_cli.plots._style import encode, styled\n"
        "from tests.unit import plot_kit\n"
        "for kind, data in plot_kit.every_kind().items():\n"
        "    with styled():\n"
        "        print(kind, hashlib.sha256(encode(plots.load(kind).draw(data), 'svg')).hexdigest())\n"
    )
    told = []
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PATH": str(Path(sys.executable).parent), "HOME": str(Path.home())}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == len(KINDS)
