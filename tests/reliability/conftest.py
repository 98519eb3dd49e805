"""Shared by the reliability tests: a quick place for stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of fsyncs on a busy disk prove nothing more."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
