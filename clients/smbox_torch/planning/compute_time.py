"""The median duration of a computation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

__all__ = ["median_s"]

SKIPPED: Final = 2


def median_s(compute: Callable[[], None], rounds: int) -> float:
    """Return the median seconds of one computation; no other process should be busy.

    Args:
        compute: forward and backward pass of one batch.
        rounds: number of measured rounds, after some warm-up rounds.
    """
    times = []
    for _ in range(SKIPPED + rounds):
        began_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[SKIPPED:])
