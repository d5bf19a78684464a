"""Requests in turn: one after another has succeeded, or after a function of the caller's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from smbox.errors import ConfigError
from smbox.work import Work


class InTurn(Work):
    """A request and, once it has succeeded, a second one; see Work.

    If the first one fails, the second is never begun. The outcome is "all" if the second one
    has happened, and "partial" if only the first one has.

    Args:
        first: the request.
        second: describes another one; called by the thread that first drives it.
    """

    def __init__(self, first: Work, second: Callable[[], Work]) -> None:
        self._first = first
        self._describe = second
        self._second: Work | None = None
        self._is_cancelled = False
        self._lock = threading.RLock()  # two threads that wait drive one second

    def begin(self) -> None:
        """Begin the first."""
        self._first.begin()

    def advance(self, deadline_s: float) -> bool:
        """Drive what is under way; see Work."""
        if self._is_cancelled:
            return self._settle(deadline_s)
        if not self._first.advance(deadline_s):
            return False
        with self._lock:
            self._second = self._second or self._describe()
        return self._second.advance(deadline_s)

    def progress(self) -> int:
        """Return a number that grows as long as either gets on."""
        second = 0 if self._second is None else 1 + self._second.progress()
        return self._first.progress() + second

    def outcome(self) -> str:
        """Tell what is known of both."""
        first = self._first.outcome()
        if self._second is None:
            return "partial" if first == "all" else first
        second = self._second.outcome()
        return "partial" if second == "none" and first != "none" else second

    def ranges_done(self) -> list[tuple[int, int]]:
        """List what is done of the first."""
        return self._first.ranges_done()

    def facts(self) -> dict[str, object]:
        """Tell what the one under way waits for."""
        return (self._second or self._first).facts()

    def cancel(self) -> None:
        """End both; see Work."""
        self._is_cancelled = True
        for each in self._begun():
            each.cancel()

    def _begun(self) -> list[Work]:
        return [self._first] if self._second is None else [self._first, self._second]

    def _settle(self, deadline_s: float) -> bool:
        """Find out what became of what was cancelled; False at the deadline."""
        for each in self._begun():
            if each.outcome() == "unknown" and not each.advance(deadline_s):
                return False
        return True


class FunctionCall(Work):
    """A function that is called once, and the request that it began, if any; see Work.

    The thread that drives this calls it; another one that waits meanwhile waits for its end.
    What it began may be of another region: no ranges are listed.

    Args:
        function: returns the request, or None.
    """

    def __init__(self, function: Callable[[], Work | None]) -> None:
        self._function = function
        self._is_called = False
        self._failure: Exception | None = None
        self._began: Work | None = None
        self._lock = threading.RLock()

    def advance(self, deadline_s: float) -> bool:
        """Call the function, unless that was done, and drive what it began; see Work.

        Raises:
            ConfigError: the function was interrupted.
            Exception: what the function raised; the same at every call.
        """
        left_s = max(0.0, deadline_s - time.monotonic())
        if not self._lock.acquire(timeout=min(left_s, threading.TIMEOUT_MAX)):
            return False
        try:
            if not self._is_called:
                self._call()
        finally:
            self._lock.release()
        if self._failure is not None:
            raise self._failure
        return self._began is None or self._began.advance(deadline_s)

    def progress(self) -> int:
        """Return a number that grows with the call, and with what it began."""
        return self._is_called + (0 if self._began is None else self._began.progress())

    def outcome(self) -> str:
        """Tell whether the function has returned, and what is known of what it began."""
        if not self._is_called or self._failure is not None:
            return "none"
        return "all" if self._began is None else self._began.outcome()

    def facts(self) -> dict[str, object]:
        """Tell what the request waits for that the function began."""
        return {} if self._began is None else self._began.facts()

    def cancel(self) -> None:
        """End what the function began."""
        if self._began is not None:
            self._began.cancel()

    def _call(self) -> None:
        self._is_called = True
        self._failure = ConfigError(
            "the function of then() was interrupted; it is not called again"
        )
        try:
            self._began = self._function()
        except Exception as error:
            self._failure = error
            raise
        self._failure = None
