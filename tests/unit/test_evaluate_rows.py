"""Rows and comparisons: what the numbers mean, checked against hand-made costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnf_cli.cli import measured
from cnf_cli.evaluation.protocol import unequal
from cnf_cli.evaluation.result_table import Column, comparisons_of, rows_of

TWICE = 2
"""The four instances below, so often: enough for intervals."""


def column(method: str = "m", **more: Any) -> Column:
    cost = np.tile([[1.1, 2.0, 4.0, 9.9], [1.0, 2.2, 4.4, 9.9]], TWICE)
    values: dict[str, Any] = {
        "plain": cost + 1,
        "reference": np.tile([1.0, 2.0, 4.0, 10.0], TWICE),
        "proved": np.array([True] * 4 * TWICE),
        "names": ("a", "b", "c", "d") * TWICE,
        "solver": "concorde",
    }
    return Column("s", method, **{"cost": cost, **values, **more})


def test_a_row_is_the_mean_of_per_instance_gaps_of_the_best_model() -> None:
    """Best of M per instance, gaps averaged, not the ratio of means; a beaten reference counts as negative."""
    row = next(rows_of(column(), 8, "greedy"))
    assert (row["cost"], row["count"], row["models"], row["model"], row["augment"]) == (4.225, 8, 2, None, 8)
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
    one = next(rows_of(replace(column(), proved=np.tile([True, True, False, True], TWICE)), 8, "greedy"))
    assert (one["proved"], one["reference"]) == (False, "concorde, 6 of 8 proved optimal")
    one = next(rows_of(replace(column(), proved=np.zeros(8, bool)), 8, "greedy"))
    assert (one["proved"], one["reference"]) == (False, "concorde, not proved optimal")
    assert next(rows_of(column(), 8, "greedy"))["reference"] == "concorde, proved optimal"
    none = next(rows_of(replace(column(), reference=np.full(8, np.nan)), 8, "greedy"))
    assert (none["gap_percent"], none["gap_ci95"], none["reference"], none["reference_count"]) == (
        None,
        None,
        "none",
        0,
    )
    some = next(rows_of(replace(column(), reference=np.array([1.0, *[np.nan] * 7])), 8, "greedy"))
    assert (some["reference_count"], some["count"]) == (1, 8)


def columns_at(*scales: float, count: int = 40, seed: int = 0) -> list[Column]:
    """Methods m0, m1, ... on the same instances, each with gaps of its own mean size."""
    rng = np.random.default_rng(seed)
    reference = rng.uniform(5, 50, count)
    about = {"plain": None, "reference": reference, "proved": np.ones(count, bool), "names": ("",) * count}
    costs = [reference * (1 + rng.exponential(scale, count)) for scale in scales]
    return [column(f"m{k}", cost=cost[None], **about) for k, cost in enumerate(costs)]


def test_comparisons_are_paired_corrected_and_agree_with_scipy() -> None:
    """Every pair on a shared set, t and p as scipy gives them, Holm over all, a verdict that names the winner."""
    from scipy.stats import ttest_rel

    columns = columns_at(0.01, 0.012, 0.2)
    found = comparisons_of(columns)
    assert [(c["a"], c["b"]) for c in found] == [("m0", "m1"), ("m0", "m2"), ("m1", "m2")]
    for c in found:
        a, b = (columns[int(c[key][1])].best / columns[0].reference for key in "ab")
        test = ttest_rel(a, b)
        assert c["t"] == pytest.approx(test.statistic, rel=1e-6)
        assert c["p"] == pytest.approx(test.pvalue, rel=1e-6)
    p = sorted(c["p"] for c in found)
    wanted = np.maximum.accumulate([3 * p[0], 2 * p[1], p[2]])  # Holm's step-down, written out
    assert sorted(c["p_holm"] for c in found) == pytest.approx(list(np.minimum(wanted, 1)))
    assert "m0 is better than m2" in found[1]["verdict"]


def test_a_difference_that_only_the_correction_hides_is_not_called_clear() -> None:
    """With p below 0.05 alone and above it among others, the verdict says "no clear difference", as p_holm does."""
    rng = np.random.default_rng(3)
    reference, noise = np.full(30, 10.0), rng.normal(size=30)
    noise = (noise - noise.mean()) / noise.std(ddof=1) / 10
    about = {"plain": None, "reference": reference, "proved": np.ones(30, bool), "names": ("",) * 30}
    base = rng.uniform(11, 12, 30)
    # m1's mean lies 0.4 standard deviations from m0's: t = 2.19, p = 0.037, of three comparisons 0.11.
    costs = [base, base + noise + 0.04, base + noise[::-1]]
    columns = [column(f"m{k}", cost=cost[None], **about) for k, cost in enumerate(costs)]
    alone, among = comparisons_of(columns[:2])[0], comparisons_of(columns)[0]
    assert alone["p"] == pytest.approx(0.0368, abs=0.0005)
    assert alone["p"] == among["p"] < 0.05 < among["p_holm"]
    assert "m0 is better than m1" in alone["verdict"]
    assert "no clear difference between m0 and m1" in among["verdict"]
    assert alone["ci95"][1] < 0 < among["ci95"][1]


@pytest.mark.parametrize("seed", range(12))
def test_interval_test_and_verdict_give_one_answer(seed: int) -> None:
    """The interval leaves out 0 exactly where the corrected p is below 0.05; both are of the mean gaps' difference."""
    columns = columns_at(0.02, 0.03, 0.035, 0.05, count=12 + seed, seed=seed)
    gap = {c.method: next(rows_of(c, 8, "greedy"))["gap_percent"] for c in columns}
    for c in comparisons_of(columns):
        low, high = c["ci95"]
        assert c["difference_percent"] == pytest.approx(gap[c["a"]] - gap[c["b"]], abs=1e-6)
        assert low <= c["difference_percent"] <= high
        assert (low > 0 or high < 0) == (c["p_holm"] < 0.05)
        assert ("no clear difference" in c["verdict"]) == (c["p_holm"] >= 0.05)
        if c["p_holm"] < 0.05:
            word = "better" if gap[c["a"]] < gap[c["b"]] else "worse"
            assert f"{c['a']} is {word} than {c['b']} ({c['difference_percent']:+.3f} points of gap" in c["verdict"]


def test_the_verdict_follows_the_mean_gap_where_the_mean_cost_points_the_other_way() -> None:
    """One large instance decides the mean of costs; the verdict is about gaps, and says so."""
    reference = np.array([10.0] * 19 + [10_000.0])
    about = {"plain": None, "reference": reference, "proved": np.ones(20, bool), "names": ("",) * 20}
    ripple = 1 + 0.001 * np.arange(20)
    often, once = reference * 1.01 * ripple, reference * 1.10 * ripple
    often[-1], once[-1] = 12_500.0, 11_000.0
    found = comparisons_of([column("often", cost=often[None], **about), column("once", cost=once[None], **about)])[0]
    assert found["p_holm"] < 0.05
    assert found["difference_percent"] < 0
    assert "often is better than once (-" in found["verdict"]
    assert found["verdict"].endswith("its mean cost is higher, as large instances weigh more there")


def test_few_instances_get_no_interval_no_test_and_no_share() -> None:
    """What a handful cannot tell is left out of rows and comparisons; p95 takes twenty."""
    few, some, more = (columns_at(0.01, 0.2, count=count) for count in (7, 8, 20))
    kept = ("gap_ci95", "share_not_worse", "p95")
    told = [[next(rows_of(c[0], 8, "greedy"))[key] is not None for key in kept] for c in (few, some, more)]
    assert told == [[False, False, False], [True, True, False], [True, True, True]]
    one, two = comparisons_of(few)[0], comparisons_of(some)[0]
    assert (one["ci95"], one["p"], one["p_holm"]) == (None, None, None)
    assert "7 instances cannot tell them apart (" in one["verdict"]
    assert two["p_holm"] is not None
    assert "1 instance cannot" in comparisons_of(columns_at(0.01, 0.2, count=1))[0]["verdict"]


def test_without_references_costs_are_compared_alike_in_both_directions() -> None:
    """a against b is b against a with the other sign; the line says that it is about costs."""
    a, b = (replace(c, reference=np.full(40, np.nan)) for c in columns_at(0.01, 0.2))
    there, back = comparisons_of([a, b])[0], comparisons_of([b, a])[0]
    assert there["of"] == back["of"] == "cost"
    assert there["difference_percent"] == -back["difference_percent"]
    assert there["ci95"] == [-v for v in reversed(back["ci95"])]
    assert "% of the cost" in there["verdict"]
    assert comparisons_of(columns_at(0.01, 0.2))[0]["of"] == "gap"


def test_sets_made_against_one_method_are_never_paired() -> None:
    """A white-box set has other instances for every method: no test between them."""
    assert comparisons_of([column("a", paired=False), column("b", paired=False)]) == []
    assert len(comparisons_of([column("a"), column("b")])) == 1
    assert "same on all 8" in comparisons_of([column("a"), column("b")])[0]["verdict"]


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
