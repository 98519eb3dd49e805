"""Tables of numbers as spreadsheets write them: which separator, which decimal mark, and whether there is a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cnf_cli.errors import DataError
from cnf_cli.formats.item import LARGEST

SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'", ",": "','", " ": "a space"}
"""In the order in which they are tried, and as they are told. A file has one."""
_EXPONENT = r"([eE][+-]?\d+)?"
_WAYS = {
    "point": re.compile(rf"[+-]?(\d+\.?\d*|\.\d+){_EXPONENT}"),
    "comma": re.compile(rf"[+-]?(\d+(,\d+)?|,\d+){_EXPONENT}"),
    "thousands,": re.compile(r"[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?"),
    "thousands.": re.compile(r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?"),
}
"""Ways to write numbers: 1234.5 and 1234,5 and 1,234.5 and 1.234,5."""
_SEMICOLON = "save it with ';' between the values, or with decimal points"
_COMMENT = re.compile(r"#\s*([a-z]+)\s*[:=]\s*(\S+)\s*", re.IGNORECASE)
_EXCEL = re.compile(r"sep=(.)", re.IGNORECASE)
_MARKS = {".": ("point", "thousands,"), ",": ("comma", "thousands.")}


@dataclass(frozen=True)
class Table:
    """A file's numbers, its header if it has one, and the lines they stand on."""

    header: list[str] | None
    rows: list[list[float]]
    lines: list[int]
    first: int
    """The line of the header, or of the first row."""
    said: dict[str, tuple[str, int]]
    """What comments say, `# capacity: 50`, with their lines."""


@dataclass(frozen=True)
class _Lines:
    """What stands in the file besides comments and empty lines."""

    numbered: list[tuple[int, str]]
    said: dict[str, tuple[str, int]]
    separator: str | None
    """As Excel writes it into the first line: sep=;"""


def read(text: str, at: str, most: int, widest: int) -> Table:
    """The one table of at most `most` rows and `widest` columns that the text can be read as; of two, both are told."""
    found = _lines(text)
    if not found.numbered:
        return Table(None, [], [], 1, found.said)
    ways, first = _ways(found, at), found.numbered[0][1]
    tried = [found.separator] if found.separator else [s for s in SEPARATORS if len(split(first, s)) > 1]
    tables: list[Table] = []
    told: list[str] = []
    wrong: DataError | None = None
    for separator in tried or [","]:
        try:
            table = _table(found, separator, ways, at, most, widest)
        except DataError as error:
            wrong = wrong or error
            continue
        if all(table.rows != other.rows for other in tables):
            tables.append(table)
            told.append(f"{_shown(table.rows[0] if table.rows else [])} ({SEPARATORS[separator]} between values)")
    if not tables:
        assert wrong is not None
        raise wrong
    if len(tables) > 1:
        # One of them may have taken its only line for a header.
        line = next((line for table in tables for line in table.lines), found.numbered[0][0])
        raise DataError(f"this can be read as {' or '.join(told)}", at=f"{at}:{line}", hint=_SEMICOLON)
    return tables[0]


def number(text: str, at: str) -> float:
    """A number with a decimal point, or else with a decimal comma; below 1e100."""
    value = next((_value(text, way) for way in ("point", "comma") if _WAYS[way].fullmatch(text)), float("nan"))
    if not abs(value) < LARGEST:
        raise DataError(f"{text[:40]!r} is not a number", at=at)
    return value


def split(line: str, separator: str) -> list[str]:
    """The values on a line, without the space and the quotes around them."""
    if separator == " ":
        return [field.strip('"') for field in line.split()]
    if '"' in line:
        try:
            return [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
        except (csv.Error, StopIteration):
            pass
    return [field.strip().strip('"') for field in line.split(separator)]


def _lines(text: str) -> _Lines:
    numbered: list[tuple[int, str]] = []
    said: dict[str, tuple[str, int]] = {}
    separator = None
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        stripped = row.strip(" \r\n\f\v")  # a tab may be a separator with nothing before or after it
        if stripped.startswith("#"):
            if comment := _COMMENT.fullmatch(stripped.strip()):
                said.setdefault(comment[1].lower(), (comment[2], line))
        elif not numbered and (excel := _EXCEL.fullmatch(stripped)) and excel[1] in SEPARATORS:
            separator = excel[1]
        elif stripped.strip():
            numbered.append((line, stripped))
    return _Lines(numbered, said, separator)


def _ways(found: _Lines, at: str) -> Sequence[str]:
    """How numbers may be written: in all ways, or as a comment gives the decimal mark."""
    mark, line = found.said.get("decimal", ("", 0))
    if line and mark not in _MARKS:
        raise DataError(f"{mark[:40]!r} is no decimal mark", at=f"{at}:{line}", hint="`# decimal: ,` or `# decimal: .`")
    return _MARKS[mark] if line else tuple(_WAYS)


def _table(found: _Lines, separator: str, ways: Sequence[str], at: str, most: int, widest: int) -> Table:
    rows, lines = [split(text, separator) for _, text in found.numbered], [line for line, _ in found.numbered]
    while len(rows[0]) > 1 and all(row and not row[-1] for row in rows):  # a separator after the last value too
        rows = [row[:-1] for row in rows]
    width, first = len(rows[0]), lines[0]
    header = None if any(_is_number(field) for field in rows[0]) else rows[0]
    if header:
        rows, lines = rows[1:], lines[1:]
    if len(rows) > most:
        raise DataError(f"more than {most} nodes", at=f"{at}:{lines[most]}")
    if header is None and width > widest and separator == "," and (pairs := _pairs(rows[0])):
        told = f"{_shown([float(field) for field in rows[0]])}, or with decimal commas as {_shown(pairs)}"
        raise DataError(f"this can be read as {told}", at=f"{at}:{first}", hint=_SEMICOLON)
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise _other_width(row, width, separator, f"{at}:{line}")
    way = _way(rows, lines, ways, at)
    values = [[_checked(field, way, f"{at}:{line}") for field in row] for line, row in zip(lines, rows, strict=True)]
    return Table(header, values, lines, first, found.said)


def _is_number(field: str) -> bool:
    return any(way.fullmatch(field) for way in _WAYS.values())


def _way(rows: Sequence[Sequence[str]], lines: Sequence[int], ways: Sequence[str], at: str) -> str:
    """How all numbers of the table are written; a point is a decimal point wherever that is possible."""
    left, before = list(ways), ""
    doubtful: tuple[int, str] | None = None
    for line, row in zip(lines, rows, strict=True):
        for field in row:
            fit = [way for way in left if _WAYS[way].fullmatch(field)]
            if not fit and (not before or not any(_WAYS[way].fullmatch(field) for way in ways)):
                raise DataError(f"{field[:40]!r} is not a number", at=f"{at}:{line}", hint=_inside(field))
            if not fit:
                raise DataError(
                    f"numbers are written in two ways: {before[:40]!r} and {field[:40]!r}",
                    at=f"{at}:{line}",
                    hint="use one decimal mark in the whole file, and nothing between thousands",
                )
            if len(fit) < len(left):
                left, before = fit, field
            if "," in field:
                doubtful = doubtful or (line, field)
    if {"comma", "thousands,"} <= set(left) and "point" not in left and doubtful:
        line, field = doubtful
        readings = " or ".join(f"{_value(field, way):.10g}" for way in ("comma", "thousands,"))
        raise DataError(
            f"{field[:40]!r} can be read as {readings}: its comma is a decimal comma, or stands between thousands",
            at=f"{at}:{line}",
            hint="add a line `# decimal: ,` or `# decimal: .` to the file",
        )
    return left[0]


def _inside(field: str) -> str | None:
    mark = next((mark for mark in (";", "\t", "|", ",") if mark in field), None)
    return f"a file has one separator: here {SEPARATORS[mark]} stands inside a value" if mark else None


def _other_width(row: Sequence[str], width: int, separator: str, at: str) -> DataError:
    told = f"{len(row)} values where {width} are expected"
    pairs = _pairs(row) if separator == "," else []
    if len(pairs) != width:
        return DataError(told, at=at)
    return DataError(f"{told}; with decimal commas they are {_shown(pairs)}", at=at, hint=_SEMICOLON)


def _pairs(row: Sequence[str]) -> list[float]:
    """What the values are if every second comma is a decimal mark, 6,96,0,5 is 6.96 and 0.5; none where that fails."""
    if len(row) % 2 or not all(re.fullmatch(r"[+-]?\d{1,15}", field) for field in row):
        return []
    return [float(f"{whole}.{part.lstrip('+-')}") for whole, part in zip(row[::2], row[1::2], strict=True)]


def _shown(values: Sequence[float]) -> str:
    return " | ".join(f"{value:.10g}" for value in values[:8])


def _checked(field: str, way: str, at: str) -> float:
    value = _value(field, way)
    if not abs(value) < LARGEST:
        raise DataError(f"{field[:40]!r} is not a number", at=at)
    return value


def _value(field: str, way: str) -> float:
    match way:
        case "comma":
            return float(field.replace(",", "."))
        case "thousands,":
            return float(field.replace(",", ""))
        case "thousands.":
            return float(field.replace(".", "").replace(",", "."))
    return float(field)
