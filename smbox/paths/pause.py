"""Pauses between two looks at what is not ready yet."""

from __future__ import annotations

import time
from typing import Final

PAUSE_FIRST_S: Final = 20e-6
PAUSE_MAX_S: Final = 1e-3


class Pause:
    """Sleeps that grow, each twice the last: between two looks at what is not ready yet."""

    def __init__(self, first_s: float = PAUSE_FIRST_S, max_s: float = PAUSE_MAX_S) -> None:
        self._next_s = first_s
        self._max_s = max_s

    def sleep(self, deadline_s: float) -> bool:
        """Sleep once, not beyond the deadline; False, at once, if that has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(self._next_s, left_s))
        self._next_s = min(2 * self._next_s, self._max_s)
        return True
