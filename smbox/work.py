"""A request under way, as everything that waits for one sees it; and pauses of who waits."""

from __future__ import annotations

import time
from typing import Final

from smbox.errors import ConfigError

PAUSE_FIRST_S: Final = 20e-6
PAUSE_MAX_S: Final = 1e-3


class NestedCallError(ConfigError):
    """A call inside another call of the same thread: refused, and its request is as it was."""


class Work:
    """A request, under way or about to be: here one that changes nothing and fills no array."""

    def begin(self) -> None:
        """Send what can be sent at once; nothing, if that was done."""

    def advance(self, deadline_s: float) -> bool:
        """Drive the request until it is done or the monotonic clock passes ``deadline_s``.

        A deadline in the past is one try without waiting. May be called again, by any
        thread, after False and after an interrupt: it goes on exactly once.

        Returns:
            True when done; False at the deadline.

        Raises:
            NestedCallError: refused, because this thread is inside; the request is as it was.
            SmboxError: the request failed for good, and fails the same way when asked again.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return a number that grows as long as the request, or what is before it, gets on."""
        return 0

    def outcome(self) -> str:
        """Tell what is known of the effect: "none", "partial", "all" or "unknown"."""
        return "none"

    def ranges_done(self) -> list[tuple[int, int]]:
        """List the byte ranges of the region's data that are certainly done, ascending."""
        return []

    def facts(self) -> dict[str, object]:
        """Tell what else a timeout's error should say, such as the pid in the way."""
        return {}

    def cancel(self) -> None:
        """End it for its caller: nothing more is sent, and its arrays are not read again.

        What is committed stays. What is on its way may still land; ``advance`` then settles
        whether it did, and returns True once that is known. Waits for a second at most.
        """


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
