"""Runs the engine's tests and the fuzz with sanitized extensions; `make sanitize` builds it and calls this."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = ("tests/unit/test_engine_*.py", "tests/unit/test_load.py", "tests/unit/test_policy_distance.py")
TESTS += ("tests/unit/test_search.py",)
CALLS = 12000


def library(name: str) -> str:
    """Where the compiler keeps a sanitizer's library."""
    found = subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main(unpacked: Path) -> int:
    """0 when no check of the sanitizers failed."""
    env = {
        **os.environ,
        "CNF_TEST_BUILT": str(unpacked.resolve()),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')} {library('libstdc++.so')}",
        # Python and torch keep what they have at the end; allocations that are too large are an answer of the kernels.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }
    tests = [str(path) for pattern in TESTS for path in sorted(Path().glob(pattern))]
    # Not the tests that measure memory, which a sanitizer multiplies, nor those that start a command of their own.
    chosen = "not memory and not interrupt and not meanwhile and not evaluate_a_million and not arm"
    how = ["-q", "--capture=no", "-p", "no:cacheprovider", "--timeout=900"]
    suite = [sys.executable, "-m", "pytest", *how, "-k", chosen, *tests]
    for command in (suite, [sys.executable, "-m", "tests.reliability.kernel_fuzz", str(CALLS)]):
        begin = time.monotonic()
        code = subprocess.run(command, env=env, check=False).returncode
        print(f"{' '.join(command[1:4])}: exit {code}, {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
