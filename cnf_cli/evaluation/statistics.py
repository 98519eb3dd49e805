"""Is the difference real? Intervals, quantiles and paired tests; numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Side = Literal["two-sided", "less", "greater"]
ENOUGH = 8
"""Fewer instances get no interval, no test and no share: a 95% interval over 4 skewed gaps holds their mean three times
in four, one over 8 more than four times in five (tests/unit/test_stats.py)."""
ENOUGH_FOR_P95 = 20
"""With fewer instances, less than one lies beyond their 95th percentile."""
_CHUNK = 1 << 22
"""Resampled values held at once."""


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Test:
    """A paired t-test: t, degrees of freedom, p."""

    __test__ = False  # not a pytest class

    t: float
    df: int
    p: float


def gaps(cost: ArrayLike, reference: ArrayLike) -> Array:
    """Gap of each instance in percent; negative where the reference is beaten, never clipped. 0 against 0 is 0."""
    a, b = _pair(cost, reference)
    if (b < 0).any() or ((b == 0) & (a != 0)).any():
        raise ValueError("a gap needs positive reference costs")
    return 100.0 * np.divide(a - b, b, out=np.zeros_like(a), where=b != 0)


def bootstrap(values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean with its BCa bootstrap interval; for a paired comparison give the differences.

    BCa rather than plain percentiles because gaps are skewed to the right (many zeros, a few large): percentile
    intervals then miss the mean on its high side more often than they say. Same seed, same interval.
    """
    x = _finite(values)
    n, mean = len(x), float(x.mean())
    # All equal up to rounding: the resampled means would differ by rounding only, and BCa would divide noise by noise.
    if n == 1 or float(np.ptp(x)) <= 1e-12 * max(1.0, float(np.abs(x).max())):
        return Interval(mean, mean, mean)
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // n)
    parts = [x[rng.integers(0, n, (min(rows, resamples - k), n))].mean(1) for k in range(0, resamples, rows)]
    means = np.sort(np.concatenate(parts))
    # The share below the mean, ties counted half; kept off 0 and 1, where its normal quantile is infinite.
    below = (np.searchsorted(means, mean, "left") + np.searchsorted(means, mean, "right")) / 2
    shift = normal_quantile(min(max(below, 0.5), resamples - 0.5) / resamples)
    spread = x - mean  # jackknife means differ from the mean by -spread / (n - 1): the signs cancel in the ratio
    skew = float((spread**3).sum() / (6.0 * (spread**2).sum() ** 1.5))
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = shift + normal_quantile(tail)
        ends.append(float(np.quantile(means, _normal_cdf(shift + z / max(1 - skew * z, 1e-3)))))
    return Interval(mean, ends[0], ends[1])


def paired_t_test(a: ArrayLike, b: ArrayLike, side: Side = "two-sided") -> Test:
    """Student's test of whether the paired differences a - b have mean 0; "less": a is smaller.

    Equal pairs give p = 1; a constant difference other than 0 has no spread to judge it by and gives t = +-inf.
    """
    x, y = _pair(a, b)
    difference = x - y
    n = len(difference)
    if n < 2:
        raise ValueError("a paired test needs at least two instances")
    mean, spread = float(difference.mean()), float(difference.std(ddof=1))
    flat = 0.0 if mean == 0 else math.copysign(math.inf, mean)
    t = mean / (spread / math.sqrt(n)) if spread > 0 else flat
    lower = student_cdf(t, n - 1)
    upper = student_cdf(-t, n - 1)
    p = {"less": lower, "greater": upper, "two-sided": min(1.0, 2 * min(lower, upper))}[side]
    return Test(t, n - 1, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for having made all these comparisons (Holm's step-down), in the order given."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty_like(p)
    out[order] = np.minimum(stepped, 1.0)
    return [float(v) for v in out]


def clopper_pearson_upper(hits: int, trials: int, level: float = 0.95) -> float:
    """The largest true rate that still gives this few hits with probability 1 - level; one-sided, exact."""
    if not 0 <= hits <= trials or trials < 1:
        raise ValueError(f"{hits} hits in {trials} trials")
    if hits == trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        # P(X <= hits) at rate q is 1 - I_q(hits + 1, trials - hits).
        if incomplete_beta(hits + 1, trials - hits, middle) < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def quantiles(values: ArrayLike, at: Sequence[float] = (0.5, 0.95, 1.0)) -> list[float]:
    """The values that these shares of the instances do not exceed (linear between neighbours)."""
    return [float(v) for v in np.quantile(_finite(values), at)]


def p_value(p: float) -> str:
    """A p-value, as exactly as it is worth."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def student_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's t distribution."""
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    # Each branch keeps its small quantity: x = df / (df + t^2) rounds to 1 for small t, and to 0 for none.
    t2 = t * t
    if t2 < df:
        half = 0.5 * incomplete_beta(0.5, df / 2, t2 / (df + t2))
        return 0.5 + math.copysign(half, t)
    tail = 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t2))
    return 1.0 - tail if t > 0 else tail


def student_quantile(q: float, df: float) -> float:
    """The t with P(T <= t) = q, for q from 1/2 up."""
    low, high = 0.0, 1.0
    while student_cdf(-high, df) > 1 - q:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(-middle, df) > 1 - q else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The continued fraction converges fast on one side of the mean only; the other side is its mirror image.
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), evaluated from its start (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d, tiny)
            c = _away(1.0 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1.0) < 1e-16 * 8:
            break
    return value


def _away(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value


def normal_quantile(p: float) -> float:
    """The z with P(Z <= z) = p."""
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _normal_cdf(middle) < p else (low, middle)
    return (low + high) / 2


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _finite(values: ArrayLike) -> Array:
    x = np.asarray(values, np.float64).ravel()
    if len(x) == 0 or not np.isfinite(x).all():
        raise ValueError("statistics need at least one value, all of them finite")
    return x


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    x, y = _finite(a), _finite(b)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} values are no pairs")
    return x, y
