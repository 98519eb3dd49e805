"""Train, attack, harden and measure neural routing solvers."""

import os

__version__ = "0.1.0"

# torch's idle threads spin, by default long enough to take a core from the native kernels, and from everything else
# on a busy machine (docs/performance.md). Read when torch is loaded; what the user has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
