"""A warning where most of a run's time goes into waiting for exchanges."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Final

__all__ = ["SlowExchangeWarning", "Watch"]

LOOK_S: Final = 5.0
"""After so many seconds of waiting it is worth a look."""

SHARE: Final = 0.5
MB: Final = 1e6


class SlowExchangeWarning(UserWarning):
    """Most of the time of a run goes into waiting for exchanges with the memory."""


class Watch:
    """Looks at the time that a worker waits, and warns once.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_s = now_s()
        self._waited_s = 0.0
        self._limit_s = LOOK_S

    def look(self, waited_s: float, nbytes: int, exchanges: int) -> None:
        """Warn if most of the time since the last look was waited; a look needs some waiting.

        Args:
            waited_s: since the beginning.
            nbytes: that all exchanges moved.
            exchanges: how many there were.
        """
        if waited_s < self._limit_s:
            return
        now_s = self._now_s()
        passed_s, waiting_s = now_s - self._looked_s, waited_s - self._waited_s
        if waiting_s <= SHARE * passed_s:
            self._looked_s, self._waited_s = now_s, waited_s
            self._limit_s = waited_s + LOOK_S
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
