"""Standard output and error: shown, never obeyed; closed, full or of few letters, they are an error and no surprise."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from cnf_cli.errors import CnfError

# Control characters but tab and line end, and the marks that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PLAIN = str.maketrans({"└": "`", "├": "|", "│": "|", "─": "-", "·": "-"})
_COLUMNS = re.compile("[0-9]{1,5}")


def printable(text: str) -> str:
    """The text with its control characters spelled out: names come from files, and a terminal obeys."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def write(text: str, end: str = "\n") -> None:
    """The text is on standard output; trees are drawn with what letters there are."""
    text = printable(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_PLAIN)
    print(text, end=end)


def columns() -> int:
    """The width that COLUMNS asks for, 0 where it holds no such number."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if _COLUMNS.fullmatch(asked) else 0


def open_streams() -> None:
    """No file opened later becomes standard output; what cannot be written is spelled out; no width is nonsense."""
    closed = sys.stdout is None
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(2, "w")  # noqa: SIM115 - for as long as the process lives
    if closed:
        sys.stdout = open(1, "w")  # noqa: SIM115
        raise CnfError(
            "standard output is closed: the result has nowhere to go", hint="`> /dev/null` if it is not wanted"
        )
    for stream in (sys.stdout, sys.stderr):
        _spell_out(stream)
    for name in ("COLUMNS", "LINES"):  # read by libraries too, which believe them
        if not _COLUMNS.fullmatch(os.environ.get(name, "")):
            os.environ.pop(name, None)


def _spell_out(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def flush() -> None:
    """Everything printed has arrived; where it cannot, that is said now and not while the interpreter ends."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence()
        raise CnfError(
            f"cannot write to standard output: {error.strerror}", hint="the result is in the store: `cnf ls`"
        ) from error


def silence() -> None:
    """What is still to be printed goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
