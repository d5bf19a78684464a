"""Requests made of others: a second one once the first has succeeded, or several together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from smbox.deadline import left_s
from smbox.errors import ConfigError
from smbox.work import NestedCallError, Work

TURN_S: Final = 0.002
"""How long one request is driven while others wait; their sockets move on meanwhile."""


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


class Part:
    """A request whose end is kept; one of several, or a Handle.

    Attributes:
        work: the request.
        error: what it failed with.
        is_done: whether it ended, well or not.
        is_over: whether its caller has left.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.error: Exception | None = None
        self.is_done = False
        self.is_over = False

    def start(self) -> None:
        """Begin it, if that is still to be done; here it was."""

    def advance(self, deadline_s: float) -> bool:
        """Tell whether it has ended, well or not, by ``deadline_s`` of the monotonic clock."""
        if not (self.is_done or self.is_over):
            try:
                self.is_done = self.work.advance(deadline_s)
            except NestedCallError:
                raise
            except Exception as error:  # noqa: BLE001 - also what a function of then() raised
                self.fail(error)
        return self.is_done or self.is_over

    def fail(self, error: Exception) -> None:
        """Note what it failed with."""
        self.error = error
        self.is_done = True

    def cancel(self) -> None:
        """End it for its caller, unless it has ended; see Work."""
        if not self.is_done:
            self.is_over = True
            self.work.cancel()

    def settle(self, deadline_s: float) -> bool:
        """Find out what became of it after a cancel; False at the deadline."""
        if self.known() != "unknown":
            return True
        try:
            return self.work.advance(deadline_s)
        except NestedCallError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
            return True

    def known(self) -> str:
        """Tell what is known of its effect; "all" where it ended well."""
        return "all" if self.is_done and self.error is None else self.work.outcome()

    def facts(self) -> dict[str, object]:
        """See Work."""
        return self.work.facts()


P = TypeVar("P", bound=Part)


class Together(Work, Generic[P]):
    """Several requests that go on side by side until all have ended; see Work.

    Then the first error, in their order, is raised. They may be of several regions: no ranges
    are listed.

    Args:
        parts: the requests.
    """

    def __init__(self, parts: Sequence[P]) -> None:
        self._parts = parts
        self._is_cancelled = False

    def begin(self) -> None:
        """Begin all."""
        for part in self._left():
            part.start()

    def advance(self, deadline_s: float) -> bool:
        """Drive all in turn until they have ended, or the deadline; see Work.

        Raises:
            Exception: what the first one failed with, once all have ended.
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

    def progress(self) -> int:
        """Return a number that grows as long as any gets on."""
        return sum(part.is_done + part.work.progress() for part in self._parts)

    def outcome(self) -> str:
        """Combine what is known of them."""
        found = {part.known() for part in self._parts} or {"all"}
        if len(found) == 1:
            return found.pop()
        return "unknown" if "unknown" in found else "partial"

    def facts(self) -> dict[str, object]:
        """Tell what those wait for that have not ended."""
        found: dict[str, object] = {}
        for part in reversed(self._left()):  # so that the first one's stay
            found |= part.facts()
        return found

    def cancel(self) -> None:
        """End all; see Work."""
        self._is_cancelled = True
        for part in self._parts:
            part.cancel()

    def _left(self) -> list[P]:
        return [part for part in self._parts if not (part.is_done or part.is_over)]
