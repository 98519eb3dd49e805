"""How long torch's idle threads spin, set before torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cnf_cli.engine import native

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "0"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
    ids=["ours", "own count", "own policy"],
)
def test_idle_threads_spin_briefly_unless_the_user_decides(given: dict[str, str], expected: str) -> None:
    """Importing the package sets a short spin and loads no torch; a user's own setting stays."""
    env = {name: value for name, value in os.environ.items() if name not in NAMES} | given
    code = "import os, sys, cnf_cli; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected if native.available() else given.get("GOMP_SPINCOUNT", "None"), "False"]


def test_without_the_native_engine_threads_spin_as_torch_wants() -> None:
    """An install without the extension leaves the variable alone: torch's small operations are faster so."""
    env = {name: value for name, value in os.environ.items() if name not in NAMES}
    code = (
        "import os; from importlib.machinery import PathFinder as F; find = F.find_spec\n"
        "F.find_spec = lambda name, *rest: None if name.endswith('_native') else find(name, *rest)\n"
        "import cnf_cli; print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
