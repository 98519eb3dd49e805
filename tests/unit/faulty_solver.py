"""A solver that misbehaves on two of its instances, told apart by their first coordinate's rank; for tests."""

from __future__ import annotations

import numpy as np

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found, Instance

_FIRST = np.random.default_rng(1).random((6, 9, 2))[:, 0, 0]


class Params(Section):
    pass


class Solver:
    problems = ("tsp",)
    licence = "MIT"
    package = "part of the tests"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "1"

    def solve(self, instance: Instance, params: Params) -> Found:
        """Raises on the second instance, forgets a node on the third."""
        assert instance.xy is not None
        which = int(np.abs(_FIRST - instance.xy[0, 0]).argmin())
        if which == 1:
            raise RuntimeError("boom")
        return Found(list(range(instance.nodes - (which == 2))))
