"""One question, one answer: which of two methods is better, by how much, and could it be chance?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnf_cli.evaluation.statistics import ENOUGH, Array, holm, p_value, paired_t_test, student_quantile

ALPHA = 0.05


@dataclass(frozen=True)
class Answer:
    """The mean of paired differences, its interval, and the test of whether it is 0, which the interval inverts."""

    mean: float
    low: float
    high: float
    t: float
    p: float
    p_holm: float

    @property
    def clear(self) -> bool:
        return self.p_holm < ALPHA


def answers(differences: Sequence[Array]) -> list[Answer | None]:
    """Student's paired test and interval of each sample, corrected alike for all of them; None of too few instances.

    The k-th smallest of m p-values is tested at alpha / (m - k + 1) until one fails; that one's level counts for those
    after it (Holm). Each interval is Student's at just the level its p-value was tested at: it leaves out 0 exactly
    where the corrected p is below alpha.
    """
    tests = [paired_t_test(d, np.zeros_like(d)) if len(d) >= ENOUGH else None for d in differences]
    p = [test.p for test in tests if test is not None]
    corrected, levels = iter(holm(p) if p else []), iter(_levels(p))
    out: list[Answer | None] = []
    for d, test in zip(differences, tests, strict=True):
        if test is None:
            out.append(None)
            continue
        mean = float(d.mean())
        half = student_quantile(1 - next(levels) / 2, test.df) * float(d.std(ddof=1)) / len(d) ** 0.5
        out.append(Answer(mean, mean - half, mean + half, test.t, test.p, next(corrected)))
    return out


def _levels(p: Sequence[float]) -> list[float]:
    """The level at which Holm's procedure tests each p-value."""
    out, level, failed = [0.0] * len(p), 0.0, False
    for k, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if not failed:
            level = ALPHA / (len(p) - k)
            failed = p[i] >= level
        out[i] = level
    return out


def verdict(names: tuple[str, str], differences: Array, answer: Answer | None, unit: str) -> str:
    """One line on the differences of the first method to the second: who is better, by how much, and how sure it is."""
    first, second = names
    count, better, worse = len(differences), int((differences < 0).sum()), int((differences > 0).sum())
    if not better and not worse:
        return f"{first} and {second} cost the same on all {count} instances"
    counts = f"better on {better}, worse on {worse}, equal on {count - better - worse} of {count} instances"
    if answer is None:
        few = f"{count} instance{'s' * (count != 1)}"
        return f"{first} and {second}: {few} cannot tell them apart ({differences.mean():+.3f}{unit}; {counts})"
    by = f"{answer.mean:+.3f}{unit}, 95% interval {answer.low:+.3f} to {answer.high:+.3f}"
    by += f"; {p_value(answer.p_holm)}; {counts}"
    if not answer.clear:
        return f"no clear difference between {first} and {second} ({by})"
    return f"{first} is {'better' if answer.mean < 0 else 'worse'} than {second} ({by})"
