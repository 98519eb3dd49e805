"""A small page and the rows it is told from."""

from __future__ import annotations

from typing import Any

from cnf_cli import plots
from cnf_cli.evaluation.plan import CLEAN, FIXED, WHITE
from cnf_cli.plots._style import encode, styled
from cnf_cli.report.page import Made, Page, Part, number
from cnf_cli.report.story import Facts, tell
from tests.unit import plot_kit

UNIFORM = CLEAN.format(dist="uniform")


def row(set_: str, method: str, gap: float | None, **other: Any) -> dict[str, Any]:
    """A row as `cnf evaluate` writes it."""
    found: dict[str, Any] = {
        "set": set_, "method": method, "models": int(method[-2]) if method.endswith(")") else 1, "model": None,
        "augment": 8, "decode": "greedy", "count": 100, "cost": 4.0, "reference": "exact, proved optimal",
        "reference_cost": 3.9, "reference_count": 100, "proved": True, "gap_percent": gap,
        "gap_ci95": None if gap is None else [gap * 0.9, gap * 1.1], "p50": gap, "p95": gap, "share_not_worse": 0.25,
        "worst": None if gap is None else gap * 3,
    }  # fmt: skip
    return found | other


def rows(clean: tuple[float, float], fixed: tuple[float, float], white: tuple[float, float]) -> list[dict[str, Any]]:
    """The paper's three metrics, before and after."""
    out = []
    for name, gaps in ((UNIFORM, clean), (FIXED, fixed), (WHITE, white)):
        for method, gap in zip(("pretrained(1)", "cnf(3)"), gaps, strict=True):
            out.append(row(name, method, gap))
    return out


def facts(table: list[dict[str, Any]], **other: Any) -> Facts:
    return Facts("tsp", 20, table, trained_on=40_000, **other)


def page(name: str = "pretrained(1)") -> Page:
    """A page with one evaluation and two figures, sorted by nothing yet."""
    table = rows((0.5, 0.4), (12.0, 3.0), (12.0, 4.0))
    table = [{**one, "method": name if one["method"] == "pretrained(1)" else one["method"]} for one in table]
    worst = (FIXED, ["instance", f"{name} gap %", "reference cost"], [
        ["instance 7", number(9.5), number(3.0)], ["instance 11", number(30.0), number(4.0)],
        ["instance 3", number(110.0), number(2.0)],
    ])  # fmt: skip
    verdict = {"set": FIXED, "a": name, "b": "cnf(3)", "p_holm": 0.0001, "verdict": f"{name} is worse than cnf(3)"}
    part = Part("ab" * 32, tell(facts(table, comparisons=[verdict])), table, [verdict], worst)
    figures = []
    for kind in ("tours", "tradeoff"):
        data = plot_kit.every_kind()[kind]
        module = plots.load(kind)
        title, caption = module.words(data)
        with styled():
            svg = encode(module.draw(data), "svg")
        figures.append(({"kind": kind, "title": title, "caption": caption, "alt": f"{kind}: {caption}"}, svg))
    made = Made("evaluate", "ab" * 32, "cnf evaluate recipes/demo.toml", "cnf demo", 3.21, "2026-01-01 00:00:00 UTC",
                {"protocol": {"augment": 8}})  # fmt: skip
    machine = {"cnf": "0.1.0", "python": "3.11"}
    return Page("TSP20 demo", [part], figures, [made], machine, hero=figures[0], recipe="recipes/demo.toml")
