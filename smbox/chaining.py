"""Requests in turn: one, and what a function begins once that has succeeded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from smbox.deadline import left_s
from smbox.errors import ConfigError
from smbox.work import Work


class InTurn(Work):
    """A request and, once it has succeeded, a function and the request that it began, if any.

    The thread that drives this calls the function, once; another one that waits meanwhile waits
    for its end, and the function itself, or a signal handler inside it, finds this not done. If
    the request fails, the function is never called. The outcome is "all" if what it began has
    happened, and "partial" if only the first request has. See Work.

    Args:
        first: the request.
        function: returns another one, begun or not, or None.
    """

    def __init__(self, first: Work, function: Callable[[], Work | None]) -> None:
        self._first = first
        self._function = function
        self._is_called = False
        self._is_calling = False
        self._failure: Exception | None = ConfigError(
            "the function of then() was interrupted; it is not called again"
        )
        self._second: Work | None = None
        self._is_cancelled = False
        self._lock = threading.RLock()  # two threads that wait drive one second

    def begin(self) -> None:
        """Begin the first."""
        self._first.begin()

    def advance(self, deadline_s: float) -> bool:
        """Drive what is under way; see Work.

        Raises:
            ConfigError: the function was interrupted, or began what waits for this request.
            Exception: what the function raised; the same at every call.
        """
        if self._is_cancelled:
            return self._settle(deadline_s)
        if not self._first.advance(deadline_s):
            return False
        if not self._lock.acquire(timeout=min(left_s(deadline_s), threading.TIMEOUT_MAX)):
            return False
        try:
            if self._is_calling:
                return False  # asked by the function, or by a signal handler inside it
            if not self._is_called:
                # No call between: a signal handler may run after any.
                self._is_called = self._is_calling = True
                try:
                    self._call()
                finally:
                    self._is_calling = False
        finally:
            self._lock.release()
        if self._failure is not None:
            raise self._failure
        return self._second is None or self._second.advance(deadline_s)

    def progress(self) -> int:
        """Return a number that grows as long as either gets on, and with the call."""
        second = 0 if self._second is None else self._second.progress()
        return self._first.progress() + self._is_called + second

    def outcome(self) -> str:
        """Tell what is known of both."""
        first = self._first.outcome()
        if not self._is_called or self._failure is not None:
            return "partial" if first == "all" else first
        second = "all" if self._second is None else self._second.outcome()
        return "partial" if second == "none" and first != "none" else second

    def ranges_done(self) -> list[tuple[int, int]]:
        """List what is done of the first: what the function began may be of another region."""
        return self._first.ranges_done()

    def facts(self) -> dict[str, object]:
        """Tell what the one under way waits for."""
        return (self._second or self._first).facts()

    def cancel(self) -> None:
        """End both; see Work."""
        self._is_cancelled = True
        for each in self.begun():
            each.cancel()

    def begun(self) -> list[Work]:
        """Return the first, and what the function has begun."""
        return [self._first] if self._second is None else [self._first, self._second]

    def _settle(self, deadline_s: float) -> bool:
        """Find out what became of what was cancelled; False at the deadline."""
        for each in self.begun():
            if each.outcome() == "unknown" and not each.advance(deadline_s):
                return False
        return True

    def _call(self) -> None:
        try:
            second = self._function()
            self._check(second)
        except Exception as error:
            self._failure = error
            raise
        self._second = second
        self._failure = None

    def _check(self, second: Work | None) -> None:
        if second is not None and self._is_waited_for_by(second):
            raise ConfigError("the function of then() cannot return a handle that waits for it")

    def _is_waited_for_by(self, work: Work) -> bool:
        if work is self:
            return True
        return isinstance(work, InTurn) and any(map(self._is_waited_for_by, work.begun()))
