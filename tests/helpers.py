"""Running the command as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


def cnf(
    *args: str, store: Path | None = None, cwd: Path | None = None, timeout: float = 120, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """One call of `cnf` and what it printed; `fresh` starts an interpreter for it instead of forking one that waits."""
    command = [sys.executable, "-m", "cnf_cli", *args]
    where, env = cwd or ROOT, environment(store)
    if fresh:
        return subprocess.run(command, capture_output=True, text=True, cwd=where, env=env, timeout=timeout)
    with tempfile.TemporaryDirectory(prefix="cnf-test-") as folder:
        printed = {name: Path(folder, name) for name in ("stdout", "stderr")}
        for path in printed.values():
            path.touch()
        files = {name: str(path) for name, path in printed.items()}
        code = _forked({"args": args, "cwd": str(where), "env": env, **files}, timeout)
        out, err = (path.read_text(encoding="utf-8") for path in printed.values())
    return subprocess.CompletedProcess(command, code, out, err)


def _forked(request: dict[str, Any], timeout: float) -> int:
    """The exit code of a process that the server forks for it."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(request), file=server.stdin, flush=True)
    child = json.loads(server.stdout.readline())
    late = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
    late.start()
    try:
        return int(json.loads(server.stdout.readline()))
    finally:
        late.cancel()


@cache
def _server() -> subprocess.Popen[str]:
    """One for all tests of this process; it ends when this process closes its pipe."""
    command = [sys.executable, "-m", "tests.forkserver"]
    env = environment(None)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def environment(store: Path | None) -> dict[str, str]:
    """This process's environment, with the repository on the path and the given store."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return {**env, "CNF_STORE": str(store)} if store else env


def cnf_json(*args: str, store: Path | None = None, **options: Any) -> Any:
    """The JSON object a successful call printed."""
    done = cnf(*args, "--json", store=store, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
