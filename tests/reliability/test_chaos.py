"""A few seconds of what `make chaos` and `make moments` do for minutes (promises 1 to 7, 17, 24, 26)."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.reliability import chaos, moments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by way of /proc")
LONGER = pytest.mark.slow


@pytest.mark.parametrize(
    ("seconds", "only", "least"), [(1, {"import", "selftest"}, 2), pytest.param(10, (), 7, marks=LONGER)]
)
def test_a_store_survives_many_processes_at_once(
    place: Path, seconds: float, only: Collection[str], least: int
) -> None:
    """Commands at random, some killed or short of space, bytes flipped: in the end all is as if each ran alone."""
    tally = chaos.run(seconds, 5, place, makes=1, only=only)
    assert tally.faults == []
    assert tally.artifacts >= least


@pytest.mark.parametrize(("count", "only"), [(2, {"evaluate", "label"}), pytest.param(14, (), marks=LONGER)])
def test_signals_at_random_moments_leave_nothing(place: Path, count: int, only: Collection[str]) -> None:
    """Signals at random moments: the right exit code, no traceback, no process and no folder left."""
    tally = moments.run(count, 7, place, span=4.0, only=only)
    assert tally.faults == []
    assert sum(map(len, tally.seconds.values())) == count
