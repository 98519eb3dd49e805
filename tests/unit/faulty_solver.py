"""A solver that misbehaves in a different way on each instance of a known set; for tests."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found, Instance

FIRST = np.random.default_rng(1).random((6, 9, 2))[:, 0, 0]
"""The first coordinate of each instance tells which one it is."""


class Params(Section):
    pause_seconds: float = 0.0


class Solver:
    problems = ("tsp",)
    licence = "MIT"
    package = "part of the tests"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "1"

    def solve(self, instance: Instance, params: Params) -> Found:
        """Right on the first instance; then raises, forgets a node, crashes, hangs, lies about its cost."""
        assert instance.xy is not None
        time.sleep(params.pause_seconds)
        tour = list(range(instance.nodes))
        off = np.abs(FIRST - instance.xy[0, 0])
        which = int(off.argmin()) if off.min() < 1e-9 else 0
        if which == 1:
            raise RuntimeError("boom")
        if which == 2:
            return Found(tour[:-1])
        if which == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if which == 4:
            time.sleep(3600)
        return Found(tour, claimed=instance.cost(tour) * (0.5 if which == 5 else 1.0))
