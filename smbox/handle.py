"""A request that is under way: ask whether it is done, wait for it, take its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from numbers import Real
from typing import Generic, Protocol, Self, TypeVar, cast

from smbox.errors import ConfigError, RequestTimeoutError, SmboxError

T = TypeVar("T")


def check_seconds(timeout_s: object) -> float:
    """Return how long to wait, if one can wait so long.

    Raises:
        ConfigError: not a number of seconds; ``nan`` would never be over.
    """
    if not isinstance(timeout_s, Real) or math.isnan(timeout_s):
        raise ConfigError("timeout_s is a number of seconds", timeout_s=timeout_s)
    return float(timeout_s)


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


class Handle(Generic[T]):
    """A request under way, as every ``_nb`` verb returns it.

    The arrays given to the verb are untouchable until the request is done. Dropping a
    handle cancels nothing: the request goes on while other requests or ``flush`` run.

    A blocking verb that raises RequestTimeoutError is over: ``error.handle`` is its handle, and
    only tells the ``outcome``.

    Attributes:
        work: the request, for one who drives several as one.

    Args:
        op: the verb, for errors.
        work: the request.
        result: called once, when it is done; its value is what ``result()`` returns.
        timeout_s: how long ``wait`` waits when it is not told.
    """

    __slots__ = (
        "_error",
        "_is_done",
        "_is_over",
        "_op",
        "_result",
        "_timeout_s",
        "_value",
        "work",
    )

    def __init__(
        self, op: str, work: Work, result: Callable[[], T], timeout_s: float = math.inf
    ) -> None:
        self._op = op
        self.work = work
        self._result: Callable[[], T] | None = result
        self._timeout_s = timeout_s
        self._is_done = False
        self._is_over = False
        self._error: SmboxError | None = None
        self._value: T | None = None

    def begin(self) -> Self:
        """Begin the request, as an ``_nb`` verb does; one that is cut off is cancelled."""
        try:
            self.work.begin()
        except BaseException:
            self.work.cancel()
            raise
        return self

    def done(self) -> bool:
        """Tell whether the request has ended, well or not, after one try to move it on."""
        if not (self._is_done or self._is_over):
            try:
                self._is_done = self.work.advance(0.0)
            except SmboxError as error:
                self._fail(error)
        return self._is_done or self._is_over

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the request of an ``_nb`` verb is done.

        Args:
            timeout_s: seconds; None: the timeout of the box, again and again as long as the
                request gets on: large arrays on a slow network; ``math.inf`` waits for ever.

        Raises:
            RequestTimeoutError: not done in time; the request goes on, and waiting again
                continues it exactly once. Its arrays are untouchable until then.
            ConfigError: ``timeout_s`` is no number, and the request is as it was; or this is
                the handle of a blocking verb that has timed out.
            SmboxError: the request failed; the same at every call.
        """
        if not self._drive(timeout_s):
            advice = "it goes on: wait again, or flush"
            raise self._timeout(timeout_s, advice, self.work.facts())

    def finish(self, timeout_s: float | None = None) -> T:
        """Wait and return the result, as a blocking verb does.

        After anything else (a timeout, a KeyboardInterrupt) the request is over: nothing
        more of it is sent, and its arrays are not read again.
        """
        try:
            if self._drive(timeout_s):
                return self._take()
            facts = self.work.facts()  # what was in the way until now
            self._end()
        except SmboxError:
            raise
        except BaseException:
            self._end()
            raise
        advice = "it is over; the error's handle tells its outcome()"
        raise self._timeout(timeout_s, advice, facts | self.work.facts())

    def result(self) -> T:
        """Wait as ``wait()`` does and return what the verb returns."""
        self.wait()
        return self._take()

    def outcome(self, timeout_s: float | None = None) -> str:
        """Tell what became of the request; of a blocking verb that timed out, for good.

        That asks the node what it has applied, if need be, and keeps what it did not apply
        from ever taking effect.

        Args:
            timeout_s: how long to ask the node; None: the timeout of the box.

        Returns:
            "none", "partial" (see ``ranges_done``), "all", or "unknown": the node did not
            answer in time (ask again), has forgotten this client, or the request goes on.
        """
        if self._is_over and self._known() == "unknown":
            self.work.advance(time.monotonic() + self._limit_s(timeout_s))
        return self._known()

    def ranges_done(self) -> list[tuple[int, int]]:
        """List the byte ranges of the region that are certainly done, ascending."""
        return self.work.ranges_done()

    def _known(self) -> str:
        if self._is_done and self._error is None:
            return "all"
        return self.work.outcome()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else check_seconds(timeout_s)

    def _drive(self, timeout_s: float | None) -> bool:
        """Drive the request until the timeout, or the box's, and again while it gets on."""
        limit_s = self._limit_s(timeout_s)
        if self._is_over:
            raise ConfigError("this call has timed out and is over: ask outcome()", op=self._op)
        if self._error is not None:
            raise self._error
        try:
            while not self._is_done:
                before = self.work.progress()
                self._is_done = self.work.advance(time.monotonic() + limit_s)
                if timeout_s is not None or self.work.progress() == before:
                    break
        except SmboxError as error:
            self._fail(error)
            raise
        return self._is_done

    def _take(self) -> T:
        if self._result is not None:
            self._value = self._result()
            self._result = None
        return cast(T, self._value)

    def _end(self) -> None:
        self._is_over = True
        self.work.cancel()

    def _fail(self, error: SmboxError) -> None:
        self._error = error
        self._is_done = True

    def _timeout(
        self, timeout_s: float | None, advice: str, reasons: dict[str, object]
    ) -> RequestTimeoutError:
        facts: dict[str, object] = {"op": self._op, "timeout_s": self._limit_s(timeout_s)}
        facts["outcome"] = self._known()
        ranges = self.work.ranges_done()
        if ranges:
            facts["ranges_done"] = ranges
        message = f"{self._op} was not done in time; {advice}"
        error = RequestTimeoutError(message, **facts, **reasons)
        error.handle = self
        return error
