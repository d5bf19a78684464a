"""Means with 95 % confidence intervals, and what they say about a goal.

The runs of a row are a sample of what other seeds would give. With mean m and standard
deviation s of n runs, Student's t distribution with n - 1 degrees of freedom gives

    m  +-  t(0.975, n - 1) * s / sqrt(n).

Two rows are compared by the differences of runs of equal seeds, which have the same first
weights and order of pictures; their interval is that of the mean difference. Source: Student,
The probable error of a mean, Biometrika 6 (1908).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95

Verdict = Literal["met", "missed", "undecided", "no runs"]


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval.

    Attributes:
        count: values.
        mean: of them.
        half: half the width of the interval; None with fewer than two values.
    """

    count: int
    mean: float
    half: float | None

    def __str__(self) -> str:
        """Tell the mean and half the width, or that there is no interval."""
        half = "± ?" if self.half is None else f"± {self.half:.1f}"
        return f"{self.mean:.1f} {half}"

    @property
    def signed(self) -> str:
        """The same with the sign of the mean."""
        return f"{self.mean:+.1f}{str(self).removeprefix(f'{self.mean:.1f}')}"

    def is_at_most(self, limit: float) -> Verdict:
        """Tell whether the mean is at most ``limit``: only if the interval decides it."""
        if self.half is None:
            return "undecided"
        if self.mean + self.half <= limit:
            return "met"
        return "missed" if self.mean - self.half > limit else "undecided"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least one value with its interval."""
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Interval(count, mean, None)
    from scipy.stats import t as students_t  # noqa: PLC0415 - slow to import

    quantile = float(students_t.ppf(0.5 + CONFIDENCE / 2, count - 1))
    return Interval(count, mean, quantile * statistics.stdev(values) / math.sqrt(count))


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Interval | None:
    """Return values minus baseline over the seeds that both have; None if there is none."""
    seeds = sorted(values.keys() & baseline.keys())
    return interval([values[seed] - baseline[seed] for seed in seeds]) if seeds else None
