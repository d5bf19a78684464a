"""Requests composed of other requests: a request with a continuation, and a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from smbox.errors import ConfigError
from smbox.mutex import holding
from smbox.work import NestedCallError, Work

TURN_S: Final = 0.002
"""How long a group drives one request before the next; their sockets work in the meantime."""


class Chain(Work):
    """A request, a function called once it has succeeded, and the request that it returns.

    The thread that drives the chain calls the function, once. Other threads that wait for the
    chain wait for the end of the call. Inside the call, and in signal handlers that interrupt
    it, the chain is not done. If the first request fails, the function is never called. The
    outcome is "all" once the second request has taken effect, and "partial" if only the first
    has. See Work.

    Args:
        first: the request.
        function: returns the second request, started or not, or None.
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
        self._lock = threading.RLock()  # several threads may drive the chain

    def begin(self) -> None:
        """Start the first request."""
        self._first.begin()

    def advance(self, deadline_s: float) -> bool:
        """Drive the request that is in progress; see Work.

        Raises:
            ConfigError: the function was interrupted, or returned a request that waits for
                this one.
            Exception: what the function raised; the same at every call.
        """
        if self._is_cancelled:
            return all(
                each.outcome() != "unknown" or each.advance(deadline_s)
                for each in self.started()
            )
        if not self._first.advance(deadline_s):
            return False
        if not holding(self._lock, deadline_s, self._call_once, late=lambda: False):
            return False
        if self._failure is not None:
            raise self._failure
        return self._second is None or self._second.advance(deadline_s)

    def mark_reported(self) -> None:
        """Note that a call raises the error of one of the requests; see Work."""
        for each in self.started():
            each.mark_reported()

    def progress(self) -> int:
        """Return a number that grows with each request's progress, and with the call."""
        return self._is_called + sum(each.progress() for each in self.started())

    def outcome(self) -> str:
        """Return the combined outcome of both requests."""
        first = self._first.outcome()
        if self._failure is not None:
            return "partial" if first == "all" else first
        second = "all" if self._second is None else self._second.outcome()
        return "partial" if second == "none" and first != "none" else second

    def ranges_done(self) -> list[tuple[int, int]]:
        """Return the first request's ranges; the second may change another region."""
        return self._first.ranges_done()

    def facts(self) -> dict[str, object]:
        """Return the facts of the request that is in progress."""
        return (self._second or self._first).facts()

    def cancel(self) -> None:
        """Cancel both requests; see Work."""
        self._is_cancelled = True
        for each in self.started():
            each.cancel()

    def started(self) -> list[Work]:
        """Return the first request, and the second once the function has returned it."""
        return [self._first] if self._second is None else [self._first, self._second]

    def _call_once(self) -> bool:
        """Call the function unless it was called; return False while it is being called."""
        if not self._is_called:
            # One statement: a signal handler may run between two.
            self._is_called = self._is_calling = True
            try:
                second = self._function()
                self._check(second)
                self._second, self._failure = second, None
            except Exception as error:  # noqa: BLE001 - advance raises it
                self._failure = error
            finally:
                self._is_calling = False
        return not self._is_calling  # True: the caller is the function, or a signal handler

    def _check(self, second: Work | None) -> None:
        if second is not None and self._is_waited_for_by(second):
            raise ConfigError("the function of then() cannot return a handle that waits for it")

    def _is_waited_for_by(self, work: Work) -> bool:
        if work is self:
            return True
        return isinstance(work, Chain) and any(map(self._is_waited_for_by, work.started()))


class Tracked:
    """A request whose end is recorded: one of a group, or a Handle.

    Attributes:
        work: the request.
        error: the error that it failed with.
        is_done: whether it has ended, successfully or not.
        is_over: whether it was cancelled.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.error: Exception | None = None
        self.is_done = False
        self.is_over = False

    def start(self) -> None:
        """Start the request, if that is still to be done; here it was."""

    def advance(self, deadline_s: float) -> bool:
        """Drive the request; return whether it has ended by ``deadline_s``, monotonic time."""
        if not (self.is_done or self.is_over):
            self.is_done = self._advance(deadline_s)
        return self.is_done or self.is_over

    def settle(self, deadline_s: float) -> bool:
        """Find out the outcome of a cancelled request; return False at the deadline."""
        return self.known() != "unknown" or self._advance(deadline_s)

    def _advance(self, deadline_s: float) -> bool:
        try:
            return self.work.advance(deadline_s)
        except NestedCallError:
            raise
        except Exception as error:  # noqa: BLE001 - also what a function of then() raised
            self.fail(error)
            return True

    def fail(self, error: Exception) -> None:
        """Record the error that the request failed with."""
        self.error = error
        self.is_done = True

    def cancel(self) -> None:
        """Cancel the request unless it has ended; see Work."""
        if not self.is_done:
            self.is_over = True
            self.work.cancel()

    def known(self) -> str:
        """Return the known outcome; "all" after success."""
        return "all" if self.is_done and self.error is None else self.work.outcome()

    def facts(self) -> dict[str, object]:
        """Return what the request waits for; see Work."""
        return self.work.facts()


P = TypeVar("P", bound=Tracked)


class Group(Work, Generic[P]):
    """Several requests driven side by side until all have ended; see Work.

    If any failed, the group then raises the first error, in the order of the requests. The
    requests may be of several regions, so the group has no ranges.

    Args:
        parts: the requests.
    """

    def __init__(self, parts: Sequence[P]) -> None:
        self._parts = parts
        self._is_cancelled = False

    def begin(self) -> None:
        """Start all requests."""
        for part in self._left():
            part.start()

    def advance(self, deadline_s: float) -> bool:
        """Drive all requests in turn until they have ended, or the deadline; see Work.

        Raises:
            Exception: the first request's error that failed, once all have ended.
        """
        if self._is_cancelled:
            settled = [part.settle(deadline_s) for part in self._parts]
            return all(settled)
        self.begin()
        while left := self._left():
            for part in left:
                turn_s = time.monotonic() + TURN_S if len(left) > 1 else deadline_s
                part.advance(min(deadline_s, turn_s))
            if time.monotonic() >= deadline_s and self._left():
                return False
        for part in self._parts:
            if part.error is not None:
                raise part.error
        return True

    def mark_reported(self) -> None:
        """Note that a call raises the first error; a flush raises those of the others."""
        for part in [part for part in self._parts if part.error is not None][:1]:
            part.work.mark_reported()

    def progress(self) -> int:
        """Return a number that grows with each request's progress."""
        return sum(part.is_done + part.work.progress() for part in self._parts)

    def outcome(self) -> str:
        """Return the combined outcome of the requests."""
        found = {part.known() for part in self._parts} or {"all"}
        if len(found) == 1:
            return found.pop()
        return "unknown" if "unknown" in found else "partial"

    def facts(self) -> dict[str, object]:
        """Return the facts of all requests that have not ended; the first one's win."""
        found: dict[str, object] = {}
        for part in reversed(self._left()):
            found |= part.facts()
        return found

    def cancel(self) -> None:
        """Cancel all requests; see Work."""
        self._is_cancelled = True
        for part in self._parts:
            part.cancel()

    def _left(self) -> list[P]:
        return [part for part in self._parts if not (part.is_done or part.is_over)]
