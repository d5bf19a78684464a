"""Waiting on a path: sleeping between two looks, and driving what every thread has begun."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, Protocol

from smbox.errors import SmboxError

PAUSE_FIRST_S: Final = 20e-6
PAUSE_MAX_S: Final = 1e-3


class Pause:
    """Sleeps that grow from 20 us to 1 ms: between two looks at what is not ready yet."""

    def __init__(self) -> None:
        self._next_s = PAUSE_FIRST_S

    def sleep(self, deadline_s: float) -> bool:
        """Sleep once, not beyond the deadline; False, at once, if that has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(self._next_s, left_s))
        self._next_s = min(2 * self._next_s, PAUSE_MAX_S)
        return True


class Drainable(Protocol):
    """One thread's half of a path: its queue, or its channel."""

    def drain(self, deadline_s: float) -> bool:
        """Drive it until nothing is left; False at the deadline."""


def drain_all(threads: Iterable[Drainable], deadline_s: float) -> bool:
    """Drive all of them, also behind one that fails; False if any is not complete.

    Raises:
        SmboxError: what the first one failed with.
    """
    is_complete = True
    first_error: SmboxError | None = None
    for each in threads:
        try:
            is_complete = each.drain(deadline_s) and is_complete
        except SmboxError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return is_complete
