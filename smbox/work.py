"""A request under way, as everything that waits for one sees it."""

from __future__ import annotations

from typing import Protocol

from smbox.errors import SmboxError


class Work(Protocol):
    """A request, under way or about to be."""

    @property
    def is_done(self) -> bool:
        """Whether it ended, well or not."""

    @property
    def error(self) -> SmboxError | None:
        """What it failed with."""

    def begin(self) -> None:
        """Send what can be sent at once; nothing, if that was done."""

    def advance(self, deadline_s: float) -> bool:
        """Drive the request until it is done or the monotonic clock passes ``deadline_s``.

        A deadline in the past is one try without waiting. May be called again, by any
        thread, after False and after an interrupt: it goes on exactly once.

        Returns:
            True when done; False at the deadline.

        Raises:
            SmboxError: the request failed for good, and fails the same way when asked again.
        """

    def progress(self) -> int:
        """Return a number that grows as long as the request, or what is before it, gets on."""

    def outcome(self) -> str:
        """Tell what is known of the effect: "none", "partial", "all" or "unknown"."""

    def ranges_done(self) -> list[tuple[int, int]]:
        """List the byte ranges of the region's data that are certainly done, ascending."""

    def facts(self) -> dict[str, object]:
        """Tell what else a timeout's error should say, such as the pid in the way."""

    def cancel(self) -> None:
        """End it for its caller: nothing more is sent, and its arrays are not read again.

        What is committed stays. What is on its way may still land; ``advance`` then settles
        whether it did, and returns True once that is known. Waits for a second at most.
        """
