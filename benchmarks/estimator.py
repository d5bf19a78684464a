"""How long runs will take: by a guess at first, then by the finished ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

R = TypeVar("R")


class Estimator(Generic[R]):
    """Knows what the finished runs took.

    Args:
        guess_s: a run's time before any has finished, in seconds.
        alike: runs with equal values take equally long.
    """

    def __init__(self, guess_s: Callable[[R], float], alike: Callable[[R], Hashable]) -> None:
        self._guess_s = guess_s
        self._alike = alike
        self._took: dict[Hashable, list[float]] = {}
        self._ratios: list[float] = []

    def learn(self, run: R, took_s: float) -> None:
        """Take in a finished run."""
        self._took.setdefault(self._alike(run), []).append(took_s)
        self._ratios.append(took_s / self._guess_s(run))

    def seconds(self, run: R) -> float:
        """Return how long a run will take: as those alike did, else by guess and machine."""
        if took := self._took.get(self._alike(run)):
            return statistics.fmean(took)
        ratio = statistics.median(self._ratios) if self._ratios else 1.0
        return ratio * self._guess_s(run)


def duration(seconds: float) -> str:
    """Word a time in hours and minutes; less than two minutes in seconds."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
