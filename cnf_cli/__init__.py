"""Train, attack, harden and measure neural routing solvers."""

import os
from importlib.machinery import PathFinder

__version__ = "0.1.0"

# torch's idle threads spin, by default long enough to take a core from the native kernels, and from everything else
# on a busy machine; without the kernels, torch's many small operations want it (docs/performance.md). Read when torch
# is loaded; what the user has set stays.
_native_built = PathFinder.find_spec("cnf_cli.engine._native", [f"{path}/engine" for path in __path__])
if _native_built and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
