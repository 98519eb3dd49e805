"""The statistics agree with scipy and cover what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnf_cli.evaluation import statistics as stats
from cnf_cli.evaluation.verdicts import answers, verdict

scipy_stats = pytest.importorskip("scipy.stats")
scipy_special = pytest.importorskip("scipy.special")


@pytest.mark.parametrize("side", ["two-sided", "less", "greater"])
@pytest.mark.parametrize("n", [2, 3, 10, 200, 5000])
@pytest.mark.parametrize("shift", [0.0, 0.02, 1.0, -3.0])
def test_paired_t_test_agrees_with_scipy(side: stats.Side, n: int, shift: float) -> None:
    """t and p equal scipy's to 1e-8, for any size and side."""
    rng = np.random.default_rng(n)
    a = rng.normal(size=n)
    b = a + shift + 0.3 * rng.normal(size=n)
    ours, theirs = stats.paired_t_test(a, b, side), scipy_stats.ttest_rel(a, b, alternative=side)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-10)
    assert abs(ours.p - theirs.pvalue) < 1e-8


def test_tiny_p_values_keep_their_digits() -> None:
    """Far tails are right in relative terms, not rounded to 0."""
    for t, df in ((12.0, 50), (30.0, 999), (60.0, 20)):
        assert stats.student_cdf(-t, df) == pytest.approx(scipy_stats.t.sf(t, df), rel=1e-9)


@given(st.floats(0.5, 3000), st.floats(0.5, 3000), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_incomplete_beta_agrees_with_scipy(a: float, b: float, x: float) -> None:
    """I_x(a, b) is scipy's to 1e-9 over the range the tests use."""
    assert abs(stats.incomplete_beta(a, b, x) - scipy_special.betainc(a, b, x)) < 1e-9


def test_degenerate_pairs() -> None:
    """Equal costs give p = 1; a constant difference gives t = inf and p = 0; one pair is refused."""
    assert stats.paired_t_test([1, 2, 3], [1, 2, 3]).p == 1.0
    always = stats.paired_t_test([2, 3, 4], [1, 2, 3])
    assert (always.t, always.p) == (math.inf, 0.0)
    with pytest.raises(ValueError, match="two instances"):
        stats.paired_t_test([1], [2])


def test_bootstrap_covers_the_mean() -> None:
    """On skewed gaps (zeros and a long tail) about 95% of the intervals hold the true mean."""
    rng = np.random.default_rng(7)
    true, runs, hit = 0.6 * 2.0, 600, 0
    for k in range(runs):
        sample = rng.exponential(2.0, 200) * (rng.random(200) < 0.6)
        ci = stats.bootstrap(sample, resamples=1000, seed=k)
        hit += ci.low <= true <= ci.high
    assert 0.92 <= hit / runs <= 0.975


def test_bootstrap_is_seeded_and_orders_its_ends() -> None:
    """Same seed, same interval; the mean lies inside; equal values give a point."""
    x = np.random.default_rng(1).gamma(0.5, size=80)
    first, again = stats.bootstrap(x, seed=3), stats.bootstrap(x, seed=3)
    assert first == again
    assert first.low < first.mean < first.high
    assert stats.bootstrap(x, seed=4) != first
    assert stats.bootstrap([2.0] * 9) == stats.Interval(2.0, 2.0, 2.0)
    assert stats.bootstrap([0.1 + 0.2, 0.3, 0.3]).low == pytest.approx(0.3)


def test_bootstrap_agrees_with_scipys_bca() -> None:
    """The ends are those of scipy's BCa interval up to resampling noise."""
    x = np.random.default_rng(5).exponential(size=100)
    theirs = scipy_stats.bootstrap((x,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(0))
    ours = stats.bootstrap(x, resamples=20_000)
    width = ours.high - ours.low
    assert abs(ours.low - theirs.confidence_interval.low) < 0.03 * width
    assert abs(ours.high - theirs.confidence_interval.high) < 0.03 * width


def test_holm() -> None:
    """Corrected values are the textbook's: smallest times m, then m-1, never falling, never above 1."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (0, 1000), (3, 200), (199, 200), (5, 5)])
def test_clopper_pearson(hits: int, trials: int) -> None:
    """The bound is the beta quantile that defines it."""
    want = 1.0 if hits == trials else scipy_stats.beta.ppf(0.95, hits + 1, trials - hits)
    assert stats.clopper_pearson_upper(hits, trials) == pytest.approx(want, abs=1e-9)


def test_gaps_are_not_clipped() -> None:
    """A method that beats the reference shows a negative gap; zero against zero is no gap; garbage is refused."""
    assert stats.gaps([9, 11, 0], [10, 10, 0]).tolist() == [-10, 10, 0]
    with pytest.raises(ValueError, match="positive"):
        stats.gaps([1], [0])
    with pytest.raises(ValueError, match="finite"):
        stats.gaps([np.nan], [1])
    with pytest.raises(ValueError, match="pairs"):
        stats.gaps([1, 2], [1])


def test_quantiles() -> None:
    """p50, p95 and the worst are numpy's."""
    assert stats.quantiles(range(101)) == [50, 95, 100]


def test_verdict_says_who_is_better_or_that_nothing_shows() -> None:
    """Plain words for a real difference, its mirror image, noise and equality."""

    def told(d: np.ndarray) -> str:
        return verdict(("cnf", "pomo"), d, answers([d])[0], "%")

    rng = np.random.default_rng(0)
    real = -1 + 0.5 * rng.normal(size=300)
    assert told(real).startswith("cnf is better than pomo (-1.0")
    assert told(-real).startswith("cnf is worse than pomo (+1.0")
    assert "p < 0.001;" in told(real)  # never "p = 0"
    assert "no clear difference" in told(rng.normal(size=300))
    assert "cost the same on all 300" in told(np.zeros(300))
    assert told(np.full(9, -2.0)).startswith("cnf is better than pomo (-2.000%, 95% interval -2.000 to -2.000")


@pytest.mark.parametrize("df", [1, 7, 30, 2000])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.975, 1 - 0.025 / 66])
def test_student_quantile_agrees_with_scipy(q: float, df: int) -> None:
    """The quantile is scipy's."""
    assert stats.student_quantile(q, df) == pytest.approx(scipy_stats.t.ppf(q, df), rel=1e-9, abs=1e-12)


def test_answers_are_scipys_intervals_at_holms_levels() -> None:
    """The smallest of three p is asked at alpha / 3, the next at alpha / 2; as it fails, so is the third."""
    noise = np.random.default_rng(5).normal(size=25)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    samples = [noise + t / 5 for t in (6.0, 2.2, 2.1)]  # p < 0.001, 0.038 and 0.046
    got = answers(samples)
    for sample, one, level in zip(samples, got, (0.05 / 3, 0.05 / 2, 0.05 / 2), strict=True):
        assert one is not None
        want = scipy_stats.ttest_1samp(sample, 0.0).confidence_interval(1 - level)
        assert (one.low, one.high) == pytest.approx((want.low, want.high), rel=1e-9)
        assert one.clear == (one.low > 0)
    assert [one.clear for one in got if one is not None] == [True, False, False]
    assert answers([np.ones(3)]) == [None]


def test_enough_instances_are_enough_for_an_interval() -> None:
    """Over ENOUGH skewed gaps more than four in five intervals hold their mean, over half as many gaps fewer do."""
    rng = np.random.default_rng(1)
    share = {}
    for n in (stats.ENOUGH // 2, stats.ENOUGH):
        hits = 0
        for k in range(1500):
            ci = stats.bootstrap(rng.exponential(size=n), resamples=500, seed=k)
            hits += ci.low <= 1 <= ci.high
        share[n] = hits / 1500  # a standard error of 0.01
    assert share[stats.ENOUGH] > 0.81
    assert share[stats.ENOUGH // 2] < 0.79
