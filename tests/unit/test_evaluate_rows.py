"""Rows and comparisons: what the numbers mean, checked against hand-made costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnf_cli.cli import measured
from cnf_cli.stages.protocol import unequal
from cnf_cli.stages.rows import Column, comparisons_of, rows_of


def column(method: str = "m", **more: Any) -> Column:
    cost = np.array([[1.1, 2.0, 4.0, 9.9], [1.0, 2.2, 4.4, 9.9]])
    values: dict[str, Any] = {
        "plain": cost + 1,
        "reference": np.array([1.0, 2.0, 4.0, 10.0]),
        "proved": np.array([True] * 4),
        "names": ("a", "b", "c", "d"),
        "solver": "concorde",
    }
    return Column("s", method, **{"cost": cost, **values, **more})


def test_a_row_is_the_mean_of_per_instance_gaps_of_the_best_model() -> None:
    """Best of M per instance, gaps averaged, not the ratio of means; a beaten reference counts as negative."""
    row = next(rows_of(column(), 8, "greedy"))
    assert (row["cost"], row["count"], row["models"], row["model"], row["augment"]) == (4.225, 4, 2, None, 8)
    assert row["gap_percent"] == pytest.approx((0 + 0 + 0 - 1.0) / 4)
    assert row["share_not_worse"] == 1.0
    assert row["worst"] == 0.0
    assert row["gap_ci95"][0] <= row["gap_percent"] <= row["gap_ci95"][1]


def test_rows_cover_augmentation_and_every_model() -> None:
    """x8 and x1 for the best of M, then both for each model; a solver has one row; one copy has no second row."""
    assert [(r["model"], r["augment"]) for r in rows_of(column(), 8, "greedy")] == [
        (None, 8), (None, 1), (0, 8), (1, 8), (0, 1), (1, 1),
    ]  # fmt: skip
    solver = replace(column(), cost=column().cost[:1], plain=None)
    assert [(r["model"], r["augment"], r["decode"]) for r in rows_of(solver, 8, "greedy")] == [(None, 1, None)]
    assert len(list(rows_of(replace(column(), cost=column().cost[:1], plain=column().cost[:1]), 1, "greedy"))) == 1


def test_an_unproved_or_unknown_reference_is_said() -> None:
    """The row names the reference and how much of it is proved; without any there is no gap."""
    one = next(rows_of(replace(column(), proved=np.array([True, True, False, True])), 8, "greedy"))
    assert (one["proved"], one["reference"]) == (False, "concorde, 3 of 4 proved optimal")
    one = next(rows_of(replace(column(), proved=np.zeros(4, bool)), 8, "greedy"))
    assert (one["proved"], one["reference"]) == (False, "concorde, not proved optimal")
    assert next(rows_of(column(), 8, "greedy"))["reference"] == "concorde, proved optimal"
    none = next(rows_of(replace(column(), reference=np.full(4, np.nan)), 8, "greedy"))
    assert (none["gap_percent"], none["gap_ci95"], none["reference"], none["reference_count"]) == (
        None,
        None,
        "none",
        0,
    )
    some = next(rows_of(replace(column(), reference=np.array([1.0, np.nan, np.nan, np.nan])), 8, "greedy"))
    assert (some["reference_count"], some["count"]) == (1, 4)


def test_comparisons_are_paired_corrected_and_agree_with_scipy() -> None:
    """Every pair on a shared set, t and p as scipy gives them, Holm over all, a verdict that names the winner."""
    from scipy.stats import ttest_rel

    rng = np.random.default_rng(0)
    reference = rng.uniform(5, 50, 40)
    costs = [reference * (1 + rng.exponential(scale, 40)) for scale in (0.01, 0.012, 0.2)]
    about = {"plain": None, "reference": reference, "proved": np.ones(40, bool), "names": ("",) * 40}
    columns = [column(f"m{k}", cost=cost[None], **about) for k, cost in enumerate(costs)]
    found = comparisons_of(columns)
    assert [(c["a"], c["b"]) for c in found] == [("m0", "m1"), ("m0", "m2"), ("m1", "m2")]
    for c in found:
        a, b = (costs[int(c[key][1])] / reference for key in "ab")
        test = ttest_rel(a, b)
        assert c["t"] == pytest.approx(test.statistic, rel=1e-6)
        assert c["p"] == pytest.approx(test.pvalue, rel=1e-6)
        assert c["p_holm"] >= c["p"]
    assert "m0 is better than m2" in found[1]["verdict"]


def test_sets_made_against_one_method_are_never_paired() -> None:
    """A white-box set has other instances for every method: no test between them."""
    assert comparisons_of([column("a", paired=False), column("b", paired=False)]) == []
    assert len(comparisons_of([column("a"), column("b")])) == 1
    assert "same on all 4" in comparisons_of([column("a"), column("b")])[0]["verdict"]


def protocol(**more: Any) -> dict[str, Any]:
    entry = {"name": "s", "only": -1, "instances": "i" * 64, "reference": "r" * 64}
    base = {"problem": "tsp", "augment": 8, "decode": "greedy", "normalise": "auto"}
    return {**base, "sets": [{**entry, **more.pop("entry", {})}], **more}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"augment": 1}, "augment: 8 and 1"),
        ({"decode": "sample"}, "decode"),
        ({"normalise": "fit"}, "normalise"),
        ({"problem": "cvrp"}, "problem"),
        ({"entry": {"instances": "x" * 64}}, "other instances"),
        ({"entry": {"reference": "x" * 64}}, "other reference costs"),
        ({"entry": {"name": "t"}}, "sets"),
    ],
)
def test_unequal_protocols_are_named(changed: dict[str, Any], told: str) -> None:
    """Any difference that makes two numbers incomparable is found and named; equal ones are not."""
    assert unequal(protocol(), protocol()) == []
    assert any(told in text for text in unequal(protocol(), protocol(**changed)))


def test_tables_escape_what_would_break_them() -> None:
    """LaTeX and Markdown cells print as they are; a negative gap keeps its sign in every style."""
    rows = [{**row, "seconds": None} for row in rows_of(column("a_b & c|d"), 8, "greedy")]
    table = measured.main_table(rows, per_model=False)
    assert measured.STYLES["latex"]({}, [table]).count(r"a\_b \& c|d") == 2
    assert r"c\|d" in measured.STYLES["markdown"]({}, [table])
    text = measured.STYLES["csv"]({"rows": rows}, [table])
    assert "-0.25" in text
    assert "-0.250" in measured.STYLES["latex"]({}, [table])
    assert len(text.splitlines()) == 7
