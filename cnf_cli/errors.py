"""Errors a user can act on: what went wrong, where, and what to type next."""

from __future__ import annotations


class CnfError(Exception):
    """Printed in one place (`cnf_cli.__main__`) without a traceback; `code` is the process's exit code."""

    code = 2

    def __init__(self, message: str, *, at: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.at, self.hint))


def _rebuild(kind: type[CnfError], message: str, at: str | None, hint: str | None) -> CnfError:
    return kind(message, at=at, hint=hint)


class RecipeError(CnfError):
    """A recipe or an argument is wrong."""


class DataError(CnfError):
    """A file or an instance the user gave cannot be used."""


class CheckFailed(CnfError):
    """A check ran and found something wrong."""

    code = 1


class ArtifactError(CnfError):
    """An artifact is missing, damaged or of another kind."""

    code = 3


class NoAnswer(CnfError):
    """A policy ran and its numbers are no answer."""

    code = 1


class PluginError(CnfError):
    """A plugin's own code raised something that is not meant for a user."""

    code = 70


class MissingDependency(CnfError):
    """An optional dependency is not installed."""

    code = 4


class Busy(CnfError):
    """Another process works on the same result, and waiting for it was not wanted."""

    code = 75


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str | None:
    """The known word closest to `word`, if any is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return close[0] if close else None
