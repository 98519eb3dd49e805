"""A keyword file cut into headers and sections that remember their lines, so that every error can name one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from cnf_cli.errors import DataError, did_you_mean
from cnf_cli.formats.dataset import Array

SECTIONS = (
    "NODE_COORD_SECTION",
    "EDGE_WEIGHT_SECTION",
    "DISPLAY_DATA_SECTION",
    "FIXED_EDGES_SECTION",
    "DEMAND_SECTION",
    "DEPOT_SECTION",
    "TOUR_SECTION",
)
HEADERS = (
    "NAME",
    "TYPE",
    "COMMENT",
    "DIMENSION",
    "CAPACITY",
    "EDGE_WEIGHT_TYPE",
    "EDGE_WEIGHT_FORMAT",
    "EDGE_DATA_FORMAT",
    "NODE_COORD_TYPE",
    "DISPLAY_DATA_TYPE",
)
_KEYWORD = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*(:?)\s*(.*)")
_NOT_NUMERIC = re.compile(r"[^0-9+\-.eE\s]")


@dataclass
class Section:
    """The lines under one section keyword."""

    name: str
    at: str
    line: int
    rows: list[tuple[int, str]] = field(default_factory=list)

    def error(self, message: str, line: int | None = None, hint: str | None = None) -> DataError:
        return DataError(message, at=f"{self.at}:{line or self.line}", hint=hint)

    def numbers(self) -> Array:
        """Every number of the section, in reading order; anything else is an error with its line."""
        for line, text in self.rows:
            found = _NOT_NUMERIC.search(text)
            if found:
                raise self.error(f"{self.name}: {_word_at(text, found.start())!r} is not a number", line)
        tokens = [token for _, text in self.rows for token in text.split()]
        try:
            values = np.fromiter(map(float, tokens), dtype="f8", count=len(tokens))
        except ValueError:
            k = next(i for i, token in enumerate(tokens) if not _is_number(token))
            raise self.error(f"{self.name}: {tokens[k][:40]!r} is not a number", self.line_of(k)) from None
        if not np.isfinite(values).all():
            k = int(np.argwhere(~np.isfinite(values))[0][0])
            raise self.error(f"{self.name}: {tokens[k][:40]!r} is too large", self.line_of(k))
        return values

    def count(self) -> int:
        """How many numbers the section holds."""
        return sum(len(text.split()) for _, text in self.rows)

    def line_of(self, k: int) -> int:
        """The line that holds the section's k-th number."""
        for line, text in self.rows:
            k -= len(text.split())
            if k < 0:
                return line
        return self.rows[-1][0] if self.rows else self.line

    def table(self, columns: int, count: int) -> Array:
        """`count` rows of `columns` numbers; line breaks do not matter, the total does."""
        if self.count() != columns * count:
            odd = next((line for line, text in self.rows if len(text.split()) not in (0, columns)), None)
            raise self.error(
                f"{self.name} has {self.count()} numbers, DIMENSION {count} needs {columns * count}",
                odd,
                "check DIMENSION and the lines of this section",
            )
        return self.numbers().reshape(count, columns)


@dataclass
class Parts:
    """A file's headers, as (text, line), and its sections."""

    at: str
    headers: dict[str, tuple[str, int]]
    sections: dict[str, Section]
    ignored: tuple[str, ...]

    def error(self, message: str, key: str = "", hint: str | None = None) -> DataError:
        line = self.headers[key][1] if key in self.headers else 1
        return DataError(message, at=f"{self.at}:{line}", hint=hint)

    def word(self, key: str) -> str:
        """The first word of a header in capitals, '' where it is missing."""
        words = self.headers.get(key, ("", 0))[0].split()
        return words[0].upper() if words else ""

    def dimension(self, largest: int) -> int:
        """DIMENSION as an integer from 2 to `largest`, checked before anything is allocated for it."""
        text = self.headers.get("DIMENSION", ("", 0))[0]
        if not text:
            raise self.error("DIMENSION is missing", hint="add a line `DIMENSION : <number of nodes>`")
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise self.error(f"DIMENSION {text[:40]!r} is not a whole number", "DIMENSION")
        value = int(text)
        if not 2 <= value <= largest:
            raise self.error(f"DIMENSION {value} is outside 2..{largest}", "DIMENSION")
        return value


def cut(text: str, at: str) -> Parts:
    """Headers and sections of a TSPLIB or VRPLIB text; what follows EOF does not count."""
    headers: dict[str, tuple[str, int]] = {}
    sections: dict[str, Section] = {}
    ignored: list[str] = []
    current: Section | None = None
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = row.strip()
        if not stripped:
            continue
        word = _KEYWORD.fullmatch(stripped)
        if word is None:
            if current is None:
                raise DataError(f"unexpected {stripped[:40]!r} before any section", at=f"{at}:{line}")
            current.rows.append((line, stripped))
            continue
        key, colon, rest = word[1].upper(), word[2], word[3]
        if key == "EOF":
            break
        if key in SECTIONS or key.endswith("_SECTION"):
            current = _open(sections, key, at, line)
            if rest:
                current.rows.append((line, rest))
        elif key in HEADERS or (colon and len(key) > 2):
            _store(headers, ignored, key, rest.strip(), at, line)
            current = None
        else:
            near = did_you_mean(key, SECTIONS + HEADERS)
            raise DataError(
                f"unexpected {stripped[:40]!r}", at=f"{at}:{line}", hint=f"did you mean {near}?" if near else None
            )
    return Parts(at, headers, sections, tuple(ignored))


def _open(sections: dict[str, Section], key: str, at: str, line: int) -> Section:
    if key in sections:
        raise DataError(f"{key} appears twice", at=f"{at}:{line}")
    if key not in SECTIONS:
        near = did_you_mean(key, SECTIONS)
        raise DataError(
            f"{key} is not supported: it belongs to another problem",
            at=f"{at}:{line}",
            hint=f"did you mean {near}?" if near else "TSP, ATSP and CVRP files are read",
        )
    sections[key] = Section(key, at, line)
    return sections[key]


def _store(headers: dict[str, tuple[str, int]], ignored: list[str], key: str, value: str, at: str, line: int) -> None:
    if key not in HEADERS:
        if key in ("DISTANCE", "SERVICE_TIME"):
            raise DataError(
                f"{key} limits routes, which is not supported", at=f"{at}:{line}", hint="use a plain CVRP file"
            )
        ignored.append(key)
    elif key != "COMMENT" and key in headers and headers[key][0] != value:
        raise DataError(f"{key} appears twice with different values", at=f"{at}:{line}")
    headers[key] = (value, line)


def _word_at(text: str, position: int) -> str:
    return next((word for word in text[max(0, position - 20) :].split() if _NOT_NUMERIC.search(word)), "")[:40]


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True
