"""The `cnf` command; the one place that prints errors and decides exit codes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback

from cnf_cli import interrupt
from cnf_cli.errors import CnfError


def main() -> None:
    """Run the command line and exit with its code."""
    interrupt.install()
    try:
        from cnf_cli.cli.app import app

        app()
    except CnfError as error:
        report(error)
        sys.exit(error.code)
    except BrokenPipeError:
        # The reader of our output went away (`cnf ls | head`): nothing to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        sys.exit(report_bug(error))


def report(error: CnfError) -> None:
    """Say what went wrong, where, and what to type next: on stderr, or as one JSON object with --json."""
    if "--json" in sys.argv:
        told = {"error": error.message, "at": error.at, "hint": error.hint, "code": error.code}
        print(json.dumps(told))
    lines = [f"error: {error.message}"]
    lines += [f"  at: {error.at}"] if error.at else []
    lines += [f"hint: {error.hint}"] if error.hint else []
    sys.stderr.write("\n".join(lines) + "\n")
    if _verbose() and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)


def report_bug(error: Exception) -> int:
    """A mistake of ours: keep the traceback in a file, show it with -v."""
    text = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile("w", prefix="cnf-bug-", suffix=".txt", delete=False) as out:
        out.write(f"command: {sys.argv}\n{text}")
    if _verbose():
        sys.stderr.write(text)
    sys.stderr.write(f"error: this is a bug in cnf: {type(error).__name__}: {error}\n")
    sys.stderr.write(f"hint: the full traceback is in {out.name}; please send it along with `cnf doctor`.\n")
    return 70


def _verbose() -> bool:
    return any(flag in sys.argv for flag in ("-v", "--verbose"))


if __name__ == "__main__":
    main()
