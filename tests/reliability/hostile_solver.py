"""A solver that starts processes which want to outlive it; for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cnf_cli.recipe.sections import Section
from cnf_cli.solvers.base import Found, Instance

STAYS = "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)"


class Params(Section):
    pause_seconds: float = 1000.0


class Solver:
    problems = ("tsp",)
    licence = "MIT"
    package = "part of the tests"
    exact = False
    least = 0

    def available(self) -> str | None:
        return "1"

    def solve(self, instance: Instance, params: Params) -> Found:
        """Never: below it sleep a child, one in a session of its own, and an orphan of both kinds."""
        folder = Path(tempfile.mkdtemp(prefix="cnf-solver-"))
        (folder / "closed").mkdir()
        (folder / "closed" / "file").write_text("left behind")
        (folder / "closed").chmod(0)
        subprocess.Popen([sys.executable, "-c", STAYS])
        subprocess.Popen([sys.executable, "-c", STAYS], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", STAYS])
            os._exit(0)
        Path(os.environ["HOSTILE_READY"]).touch()
        time.sleep(params.pause_seconds)
        return Found(list(range(instance.nodes)))
