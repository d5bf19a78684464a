"""A request that is under way: ask whether it is done, wait for it, take its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

from smbox.errors import ConfigError, RequestTimeoutError, SmboxError

T = TypeVar("T")


class Work(Protocol):
    """A request under way."""

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

    def let_go(self) -> None:
        """Stop using the caller's arrays for what is on its way; ``advance`` goes on."""

    def outcome(self) -> str:
        """Tell what is known of the effect: "not-sent", "partial" or "unknown"."""

    def ranges_done(self) -> list[tuple[int, int]]:
        """List the byte ranges of the region's data that are certainly done, ascending."""

    def facts(self) -> dict[str, object]:
        """Tell what else a timeout's error should say, such as the pid in the way."""

    def cancel(self) -> None:
        """Begin nothing more of it: its arrays are about to change (an interrupted verb).

        What is committed stays; what is on its way may still land. Never waits.
        """


class Handle(Generic[T]):
    """A request under way, as every ``_nb`` verb returns it.

    The arrays given to the verb are untouchable until the request is done. Dropping a
    handle cancels nothing: the request goes on while other requests or ``flush`` run.

    Args:
        op: the verb, for errors.
        work: the request.
        result: called once, when it is done; its value is what ``result()`` returns.
        timeout_s: how long ``wait`` waits when it is not told.
    """

    __slots__ = ("_error", "_is_done", "_op", "_result", "_timeout_s", "_value", "_work")

    def __init__(
        self, op: str, work: Work, result: Callable[[], T], timeout_s: float = math.inf
    ) -> None:
        self._op = op
        self._work = work
        self._result: Callable[[], T] | None = result
        self._timeout_s = timeout_s
        self._is_done = False
        self._error: SmboxError | None = None
        self._value: T | None = None

    def done(self) -> bool:
        """Tell whether the request has ended, well or not, after one try to move it on."""
        if not self._is_done:
            try:
                self._is_done = self._work.advance(0.0)
            except SmboxError as error:
                self._fail(error)
        return self._is_done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the request is done.

        Args:
            timeout_s: seconds; None: the timeout of the box, again and again as long as the
                request gets on: large arrays on a slow network; ``math.inf`` waits for ever.

        Raises:
            RequestTimeoutError: not done in time. ``error.facts["outcome"]`` tells what is
                known of the effect and ``error.handle`` is this handle: waiting on it
                again continues the request exactly once.
            ConfigError: ``timeout_s`` is no number; the request is as it was.
            SmboxError: the request failed; the same at every call.
        """
        if self._error is not None:
            raise self._error
        if self._is_done:
            return
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if math.isnan(limit_s):  # it would never be over
            raise ConfigError("timeout_s is a number of seconds", timeout_s=limit_s)
        try:
            self._is_done = self._advance(limit_s, renews=timeout_s is None)
        except SmboxError as error:
            self._fail(error)
            raise
        if not self._is_done:
            self._work.let_go()
            raise self._timeout(limit_s)

    def finish(self, timeout_s: float | None = None) -> T:
        """Wait and return the result, as a blocking verb does.

        Anything but an error of smbox (a KeyboardInterrupt first of all) cancels what has
        not begun: nobody is left who could keep the request's arrays untouched.
        """
        try:
            self.wait(timeout_s)
        except SmboxError:
            raise
        except BaseException:
            self._work.cancel()
            raise
        return self.result()

    def result(self) -> T:
        """Wait as ``wait()`` does and return what the verb returns."""
        self.wait()
        if self._result is not None:
            self._value = self._result()
            self._result = None
        return cast(T, self._value)

    def _advance(self, limit_s: float, *, renews: bool) -> bool:
        """Drive the request for ``limit_s``; if that ``renews``, again while it gets on."""
        while True:
            before = self._work.progress()
            if self._work.advance(time.monotonic() + limit_s):
                return True
            if not renews or self._work.progress() == before:
                return False

    def _fail(self, error: SmboxError) -> None:
        self._error = error
        self._is_done = True

    def _timeout(self, timeout_s: float) -> RequestTimeoutError:
        outcome = self._work.outcome()
        facts: dict[str, object] = {"op": self._op, "timeout_s": timeout_s, "outcome": outcome}
        if outcome == "partial":
            facts["ranges_done"] = self._work.ranges_done()
        error = RequestTimeoutError(
            f"{self._op} was not done in time; wait on the error's handle to go on",
            **facts,
            **self._work.facts(),
        )
        error.handle = self
        return error
