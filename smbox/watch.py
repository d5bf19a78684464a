"""Watch: how long each lease word has stayed the same, by this process's clock. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from smbox.lease import I64


class Watch:
    """Measures how long each lease word has stayed the same.

    Args:
        count: number of words.
    """

    def __init__(self, count: int) -> None:
        self._words = np.zeros(count, np.int64)
        self._since_s = np.zeros(count)
        self._observed_s = -math.inf

    def forget(self) -> None:
        """Restart all measurements at the next observation, for example after a failed read.

        Another thread may be observing: then it restarts them, or its next observation does.
        """
        self._observed_s = -math.inf

    def observe(
        self, words: I64, lease_s: NDArray[np.float64], *, now_s: float
    ) -> NDArray[np.bool_]:
        """Return which words stayed the same for longer than their lease, ``[count]``.

        They may have changed since they were read, which ``expire`` finds.

        If more time than a lease lies between the ends of two observations, its measurement
        restarts: an observer that was stopped, or whose read waited for the node, does not
        expire the others.

        Args:
            words: the words that were just read, ``[count]``.
            lease_s: lease duration of each word in seconds, ``[count]``.
            now_s: monotonic time after the read.
        """
        quiet_s, self._observed_s = now_s - self._observed_s, now_s  # before a late ``forget``
        is_new = (words != self._words) | (quiet_s > lease_s)
        self._since_s[is_new] = now_s
        self._words[:] = words
        return now_s - self._since_s > lease_s
