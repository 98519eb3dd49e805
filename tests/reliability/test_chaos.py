"""A few seconds of what `make chaos` and `make moments` do for minutes (promises 1 to 7, 17, 24, 26)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.reliability import chaos, moments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by way of /proc")


def test_a_store_survives_many_processes_at_once(place: Path) -> None:
    """Commands at random, some killed or short of space, bytes flipped: in the end all is as if each ran alone."""
    tally = chaos.run(3, 5, place, makes=1)
    assert tally.faults == []
    assert tally.artifacts >= 7


def test_signals_at_random_moments_leave_nothing(place: Path) -> None:
    """Six signals at random moments: the right exit code, no traceback, no process and no folder left."""
    tally = moments.run(6, 7, place, span=4.0)
    assert tally.faults == []
    assert sum(map(len, tally.seconds.values())) == 6
