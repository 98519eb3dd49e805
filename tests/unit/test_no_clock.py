"""No test of the default suite asserts how long something took: machines are busy, and tests must not be guesses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

CLOCKS = {"monotonic", "perf_counter", "time", "process_time", "thread_time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
USED = {"ru_utime", "ru_stime"}
"""Processor time as `resource.getrusage` tells it: on a busy machine it is no more certain than a clock."""
FILES = sorted((ROOT / "tests").rglob("*.py"))


def asserted_times(tree: ast.Module) -> Iterator[int]:
    """Lines of asserts on a clock, or on what was worked out from one, outside functions that are marked as slow."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or any(map(_is_slow, function.decorator_list)):
            continue
        timed: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _reads(node.value, set()):
                timed |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and _reads(node.test, timed):
                yield node.lineno


def _is_slow(decorator: ast.expr) -> bool:
    """Whether every case of the test is marked; one slow case of many leaves the others in the default suite."""
    return ast.unparse(decorator) in ("slow", "pytest.mark.slow")


def _reads(node: ast.AST, timed: set[str]) -> bool:
    for part in ast.walk(node):
        clock = isinstance(part, ast.Attribute) and (
            part.attr in USED or (part.attr in CLOCKS and ast.unparse(part.value) == "time")
        )
        if clock or (isinstance(part, ast.Name) and part.id in timed):
            return True
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "tests")))
def test_no_assert_reads_a_clock(path: Path) -> None:
    """Neither directly nor through a variable; guards against hanging are timeouts, which are long."""
    assert list(asserted_times(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    a = time.monotonic()\n    assert time.monotonic() - a < 2\n", True),
        ("    took = time.perf_counter() - begin\n    assert took < 2\n", True),
        ("    begin = time.process_time()\n    run()\n    assert time.process_time() - begin < 2\n", True),
        ("    worst = max(worst, time.thread_time_ns() - begin)\n    assert worst < 2\n", True),
        ("    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime\n    assert used < 2\n", True),
        ("    while time.monotonic() < end:\n        pass\n    assert done\n", False),
    ],
)
def test_the_search_finds_them(body: str, found: bool) -> None:
    """Direct and indirect reads are found, loops that wait are not."""
    assert bool(list(asserted_times(ast.parse("def test():\n" + body)))) == found
    assert not list(asserted_times(ast.parse("@pytest.mark.slow\ndef test():\n" + body)))
    some = "@pytest.mark.parametrize('k', [1, pytest.param(2, marks=slow)])\ndef test(k):\n"
    assert bool(list(asserted_times(ast.parse(some + body)))) == found
