"""Runs `python -m cnf_cli ...` again and again, each time in a process of its own, without importing torch each time.

Started by tests/helpers.py with a pipe at either end: a line of JSON in says what to run, two lines out say the
process's id and, at its end, its exit code. The heavy libraries are imported here; no tensor is touched before a fork.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import Any


def serve() -> None:
    """Until the other end is closed."""
    import h5py  # noqa: F401
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    requests = os.fdopen(os.dup(0), "r")
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            requests.close()
            os._exit(run(request))
        print(json.dumps(child), file=answers)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(code), file=answers)


def run(request: dict[str, Any]) -> int:
    """The exit code of the command, as the interpreter would give it."""
    for to, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
        found = os.open(path, os.O_RDONLY if to == 0 else os.O_WRONLY)
        os.dup2(found, to)
        os.close(found)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["cnf", *request["args"]]
    code = 0
    try:
        runpy.run_module("cnf_cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve()
