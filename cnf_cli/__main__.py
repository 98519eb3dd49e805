"""The `cnf` command; the one place that prints errors and decides exit codes."""

from __future__ import annotations

import signal

# While the program is loaded there is nothing to save or to clean up: Ctrl-C ends it at once, without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc  # noqa: E402
import sys  # noqa: E402
from contextlib import suppress  # noqa: E402

from cnf_cli import interrupt, terminal  # noqa: E402
from cnf_cli.errors import CnfError  # noqa: E402
from cnf_cli.system_errors import refusal  # noqa: E402


def main() -> None:
    """Run the command line and exit with its code."""
    from cnf_cli.cli.app import app

    try:
        terminal.open_streams()
        interrupt.install()
        try:
            app()
            code: object = 0
        finally:
            interrupt.uninstall()
            terminal.flush()
    except SystemExit as end:
        code = end.code
    except (Exception, interrupt.Interrupted) as error:
        interrupt.uninstall()
        code = _told(error)
    asked = interrupt.stop_asked()
    if asked is not None and code != 128 + asked:  # whatever came of the command: it was asked to stop
        code = _told(interrupt.Interrupted(asked))
    gc.freeze()  # else the interpreter looks through all of torch for garbage, which takes longer than to stop
    sys.exit(code)  # type: ignore[arg-type]


def _told(error: Exception | interrupt.Interrupted) -> int:
    """The exit code for an error that has been told to the user."""
    asked = interrupt.stop_asked()
    if asked is not None and not isinstance(error, interrupt.Interrupted):
        error = interrupt.Interrupted(asked)  # an error after a signal is its consequence
    if isinstance(error, CnfError | interrupt.Interrupted):
        report(error)
        return error.code
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away (`cnf ls | head`): nothing to say, and nowhere to say it.
        terminal.silence()
        return 0
    told = refusal(error) if isinstance(error, OSError) else None
    if told is None:
        from cnf_cli import plugins

        told = plugins.blame(error)
        if told is None:
            return report_bug(error)
        told.hint = f"the full traceback is {_kept(error)}; send it to whoever wrote the plugin"
        told.__cause__ = error
    elif told.at is None:  # of no file: what was printed could not be
        terminal.silence()
    report(told)
    return told.code


def report(error: CnfError | interrupt.Interrupted) -> None:
    """Say what went wrong, where, and what to type next: on stderr, or as one JSON object with --json."""
    if "--json" in sys.argv:
        import json

        told = {"error": error.message, "at": error.at, "hint": error.hint, "code": error.code}
        with suppress(OSError):
            print(json.dumps(told), flush=True)
    lines = [f"error: {error.message}"]
    lines += [f"  at: {error.at}"] if error.at else []
    lines += [f"hint: {error.hint}"] if error.hint else []
    with suppress(OSError):
        sys.stderr.write(terminal.printable("\n".join(lines)) + "\n")
    if _verbose() and error.__cause__ is not None:
        import traceback

        traceback.print_exception(error.__cause__)


def report_bug(error: Exception) -> int:
    """A mistake of ours: keep the traceback in a file, show it with -v."""
    if _verbose():
        import traceback

        sys.stderr.write(terminal.printable("".join(traceback.format_exception(error))))
    where = _kept(error)
    sys.stderr.write(terminal.printable(f"error: this is a bug in cnf: {type(error).__name__}: {error}\n"))
    sys.stderr.write(f"hint: the full traceback is {where}; please send it along with `cnf doctor`.\n")
    return 70


def _kept(error: Exception) -> str:
    """Where the traceback is: in a file, with the command; on a full disk it is printed."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    with suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="cnf-bug-", suffix=".txt", delete=False) as out:
            out.write(f"command: {sys.argv}\n{text}")
        return f"in {out.name}"
    sys.stderr.write(terminal.printable(text))
    return "above"


def _verbose() -> bool:
    return any(flag in sys.argv for flag in ("-v", "--verbose"))


if __name__ == "__main__":
    main()
