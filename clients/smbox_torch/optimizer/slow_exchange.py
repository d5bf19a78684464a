"""A warning for workers that spend most of their time waiting for exchanges."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Final

__all__ = ["SlowExchangeWarning", "Watch"]

POLL_S: Final = 5.0
"""Seconds of waiting between two checks."""

SHARE: Final = 0.5
MB: Final = 1e6


class SlowExchangeWarning(UserWarning):
    """A worker spends most of its time waiting for exchanges with the memory."""


class Watch:
    """Check the time that a worker waits, and warn once.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._checked_s = now_s()
        self._waited_s = 0.0
        self._last_s = 0.0
        self._longest_s = 0.0
        self._limit_s = POLL_S

    def observe(self, waited_s: float, nbytes: int, exchanges: int) -> None:
        """Warn if the worker waited most of the time; called after each step.

        A check is made after each POLL_S seconds of waiting. The step that waited longest does
        not count: the node may have been restarted in it, or this process stopped.

        Args:
            waited_s: time waited since the start, in seconds.
            nbytes: bytes transferred by all exchanges.
            exchanges: number of exchanges.
        """
        self._longest_s = max(self._longest_s, waited_s - self._last_s)
        self._last_s = waited_s
        if waited_s < self._limit_s:
            return
        now_s = self._now_s()
        passed_s, waiting_s = now_s - self._checked_s, waited_s - self._waited_s
        if waiting_s - self._longest_s <= SHARE * (passed_s - self._longest_s):
            self._limit_s = waited_s + POLL_S
            if waiting_s <= SHARE * passed_s:  # else the next check includes this time
                self._checked_s, self._waited_s, self._longest_s = now_s, waited_s, 0.0
            return
        self._limit_s = math.inf
        size = f", of {nbytes / exchanges / MB:.3g} MB each" if nbytes and exchanges else ""
        warnings.warn(
            f"{waiting_s:.0f} of {passed_s:.0f} s went into waiting for exchanges with the"
            f" memory{size}:"
            ' exchange less often (period=, n_push=, n_fetch=), send half (wire="bfloat16"), or'
            " let exchanges pass behind gradients (overlap=True, where the class has it);"
            " stats() has the figures",
            SlowExchangeWarning,
            stacklevel=2,
        )
