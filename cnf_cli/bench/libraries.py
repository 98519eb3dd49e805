"""The three libraries: their instances with size, best known cost and digest, the paper's lists and results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cnf_cli.errors import RecipeError, did_you_mean
from cnf_cli.formats.item import Item

HERE = Path(__file__).parent
MAX_NODES = 100_000


@dataclass(frozen=True)
class Known:
    """What is known about one instance of a library."""

    nodes: int | None = None
    best: float | None = None
    sha256: str | None = None
    """`digest` of the instance itself, whatever its file looks like."""


@dataclass(frozen=True)
class Library:
    """One benchmark library."""

    name: str
    problem: str
    suffix: str
    proved: bool
    """Whether its best known costs are proved optimal."""
    what: str
    """What its costs are called in tables."""
    addresses: tuple[str, ...]
    """Where its files are published; {name} stands for the instance."""

    @property
    def known(self) -> dict[str, Known]:
        """Every instance we know of, by name."""
        return {name: Known(**entry) for name, entry in _table()[self.name].items()}

    @property
    def paper(self) -> dict[str, dict[str, float]]:
        """The paper's results: instance -> {"opt", "pomo", "cnf"}, in the paper's order."""
        found: dict[str, dict[str, float]] = json.loads((HERE / "paper.json").read_text(encoding="utf-8")).get(
            self.name, {}
        )
        return found


LIBRARIES = {
    "tsplib": Library(
        "tsplib",
        "tsp",
        ".tsp",
        True,
        "optimum",
        (
            "http://comopt.ifi.uni-heidelberg.de/software/TSPLIB95/tsp/{name}.tsp.gz",
            "https://raw.githubusercontent.com/mastqe/tsplib/master/{name}.tsp",
            "https://raw.githubusercontent.com/pdrozdowski/TSPLib.Net/master/TSPLIB95/tsp/{name}.tsp",
        ),
    ),
    "atsplib": Library(
        "atsplib",
        "atsp",
        ".atsp",
        True,
        "optimum",
        (
            "http://comopt.ifi.uni-heidelberg.de/software/TSPLIB95/atsp/{name}.atsp.gz",
            "https://raw.githubusercontent.com/pdrozdowski/TSPLib.Net/master/TSPLIB95/atsp/{name}.atsp",
        ),
    ),
    "cvrplib": Library(
        "cvrplib",
        "cvrp",
        ".vrp",
        False,
        "best known",
        (
            "http://vrp.galgos.inf.puc-rio.br/media/com_vrp/instances/X/{name}.vrp",
            "https://raw.githubusercontent.com/PyVRP/Instances/main/CVRP/{name}.vrp",
        ),
    ),
}


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = json.loads((HERE / "instances.json").read_text(encoding="utf-8"))
    return found


def library(name: str) -> Library:
    """The library of that name."""
    if name not in LIBRARIES:
        near = did_you_mean(name, tuple(LIBRARIES))
        hint = f"did you mean '{near}'?" if near else f"one of {', '.join(LIBRARIES)}"
        raise RecipeError(f"there is no benchmark library '{name}'", hint=hint)
    return LIBRARIES[name]


@dataclass(frozen=True)
class Choice:
    """Which instances of a library are wanted: `tsplib`, `tsplib:all`, `tsplib:kro*,lin105`, `tsplib:..200`."""

    library: Library
    patterns: tuple[str, ...] = ()
    """Empty: the paper's list, or all where the paper has none of these sizes."""
    least: int = 0
    most: int = MAX_NODES

    @property
    def named(self) -> bool:
        """Whether the user named instances; a range of sizes alone leaves the choice to us."""
        return bool(self.patterns)

    def names(self, extra: Sequence[str] = ()) -> list[str]:
        """The wanted instances among those known and `extra`, the paper's first and in its order."""
        known = self.library.known

        def fits(name: str) -> bool:
            return self.least <= _size(known, name) <= self.most or known.get(name, Known()).nodes is None

        files = [name for name, entry in known.items() if entry.sha256]
        paper = list(self.library.paper)
        everything = list(dict.fromkeys([*paper, *sorted([*files, *extra], key=lambda n: (_size(known, n), n))]))
        if not self.patterns:
            wanted = paper if any(map(fits, paper)) else everything
        elif "all" in self.patterns:
            wanted = everything
        else:
            wanted = [n for n in everything if any(fnmatchcase(n.lower(), p.lower()) for p in self.patterns)]
            self._check(everything)
        return [name for name in wanted if fits(name)]

    def _check(self, names: Sequence[str]) -> None:
        for pattern in self.patterns:
            if not any(fnmatchcase(name.lower(), pattern.lower()) for name in names):
                near = did_you_mean(pattern, tuple(names))
                hint = f"did you mean '{near}'?" if near else f"`cnf bench list {self.library.name}`"
                raise RecipeError(f"{self.library.name} has no instance '{pattern}'", hint=hint)


def _size(known: dict[str, Known], name: str) -> int:
    return known.get(name, Known()).nodes or MAX_NODES


def choose(text: str) -> Choice:
    """The choice a user wrote."""
    name, _, rest = text.partition(":")
    found = Choice(library(name))
    patterns: list[str] = []
    least, most = 0, MAX_NODES
    for word in filter(None, (part.strip() for part in rest.split(","))):
        low, dots, high = word.partition("..")
        if not dots:
            patterns.append(word)
            continue
        if not all(part.isdigit() or not part for part in (low, high)) or word == "..":
            raise RecipeError(f"'{word}' is not a range of sizes", hint=f"for example {name}:100..200 or {name}:..500")
        least, most = int(low or 0), int(high or MAX_NODES)
    return Choice(found.library, tuple(patterns), least, most)


def recognised(item: Item) -> Item:
    """The instance with the cost that its library publishes, under whatever name it comes; its own reference stays."""
    if item.tour or item.cost == item.cost or (item.problem, item.nodes) not in _sizes():
        return item
    found = _own().get(digest(item))
    return item if found is None else replace(item, cost=found[1], proved=found[0].proved)


@cache
def _own() -> dict[str, tuple[Library, float]]:
    """Digest -> the library that holds the instance, and its best known cost."""
    known = [(about, one) for about in LIBRARIES.values() for one in about.known.values()]
    return {one.sha256: (about, one.best) for about, one in known if one.sha256 and one.best is not None}


@cache
def _sizes() -> frozenset[tuple[str, int | None]]:
    return frozenset((about.problem, one.nodes) for about in LIBRARIES.values() for one in about.known.values())


def digest(item: Item) -> str:
    """One hash for the instance a file describes: equal for all its copies, however they are laid out."""
    out = hashlib.sha256(f"{item.problem} {item.rule} {item.nodes} {item.capacity}".encode())
    # Coordinates beside a matrix are for drawing: not every copy of a file has them.
    shown = None if item.matrix is not None else item.xy
    for array in (shown, item.matrix, item.demand):
        if array is not None:
            out.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    return out.hexdigest()
