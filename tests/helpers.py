"""Running the command as a user does, in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


def cnf(
    *args: str, store: Path | None = None, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """One call of `cnf` and what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "cnf_cli", *args],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env=environment(store),
        timeout=timeout,
    )


def environment(store: Path | None) -> dict[str, str]:
    """This process's environment, with the repository on the path and the given store."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return {**env, "CNF_STORE": str(store)} if store else env


def cnf_json(*args: str, store: Path | None = None, **options: Any) -> Any:
    """The JSON object a successful call printed."""
    done = cnf(*args, "--json", store=store, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
