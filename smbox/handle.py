"""Handle: a request in progress, as every non-blocking verb returns it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Generic, Self, TypeVar

from smbox.combining import Chain, Group, Tracked
from smbox.deadline import check_seconds
from smbox.errors import ConfigError, RequestTimeoutError, SmboxError
from smbox.work import NestedCallError, Work

T = TypeVar("T")
POLL_FIRST_S: Final = 0.0001
POLL_MAX_S: Final = 0.01
"""Pause of ``await`` between two checks of a request: the first, and the longest."""
ADVICE: Final = "it continues: wait again, or flush"


class Handle(Tracked, Generic[T]):
    """A request in progress, as every ``_nb`` verb returns it.

    The arrays given to the verb must not be modified until the request is done. Dropping a
    handle does not cancel the request: it continues while other requests or ``flush`` run,
    until the box is closed.

    A blocking verb that raises RequestTimeoutError is over. ``error.handle`` is its handle, and
    its only use is ``outcome``.

    Attributes:
        timeout_s: default timeout of ``wait``, in seconds.
        work: the request, for code that drives several requests as one.

    Args:
        op: name of the verb, for errors.
        work: the request.
        result: returns the result once the request is done; the same value at each call.
        timeout_s: see the attribute.
    """

    def __init__(
        self, op: str, work: Work, result: Callable[[], T], timeout_s: float = math.inf
    ) -> None:
        super().__init__(work)
        self._op = op
        self._result = result
        self.timeout_s = timeout_s
        self._is_chained = False

    def begin(self) -> Self:
        """Start the request, as an ``_nb`` verb does; cancel it if that is interrupted."""
        try:
            self.work.begin()
        except BaseException:
            self.work.cancel()
            raise
        return self

    def done(self) -> bool:
        """Return whether the request has ended, successfully or not; never blocks.

        Each call drives the request as far as possible without waiting.
        """
        return self.advance(0.0)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the request of an ``_nb`` verb is done.

        Args:
            timeout_s: seconds; ``math.inf`` waits without limit. None: the timeout of the box,
                which restarts as long as the request makes progress (large arrays, slow
                networks).

        Raises:
            RequestTimeoutError: the request is not done; it continues, and takes effect exactly
                once. Wait again; its arrays must not be modified until then.
            ConfigError: ``timeout_s`` is not a number, and the request is unchanged; or this is
                the handle of a blocking verb that has timed out.
            SmboxError: the request failed; every call raises the same error.
        """
        if not self._drive(timeout_s):
            raise self._timeout(timeout_s, ADVICE, self.work.facts())

    def finish(self, timeout_s: float | None = None) -> T:
        """Wait for the request and return its result, as a blocking verb does.

        If anything is raised, a timeout or a KeyboardInterrupt, the request is over: no more of
        it is sent, and its arrays are not read again.
        """
        try:
            if self._drive(timeout_s):
                return self._result()
            facts = self.work.facts()  # before the cancel changes them
            self.cancel()
        except BaseException:
            self.cancel()  # does nothing if the request has failed
            raise
        self.work.mark_reported()
        advice = "it is over; the error's handle tells its outcome()"
        raise self._timeout(timeout_s, advice, facts | self.work.facts())

    def result(self) -> T:
        """Wait as ``wait()`` does, and return the result of the verb."""
        self.wait()
        return self._result()

    def then(self, function: Callable[[T], Any]) -> Handle[Any]:
        """Return a handle whose result is ``function(self.result())``.

        The function is called once, after this request has succeeded, by the thread that waits
        for the new handle, calls its ``done()`` or awaits it; a flush does not call it. If it
        returns a handle, the new handle waits for that one too, and has its result. If this
        request fails, the function is not called, and the new handle fails with the same error.
        If the function raises, the new handle fails with that error.

        Raises:
            ConfigError: a function was chained to this handle before, or this is the handle of
                a blocking verb that has timed out; nothing changed.
            TypeError: ``function`` is not callable; nothing changed.
        """
        self.check_not_over()
        if not callable(function):
            raise TypeError(f"then() takes a function, not {type(function).__name__}")
        if self._is_chained:
            raise ConfigError(
                "one function can be chained to a handle: chain to the handle that then()"
                " returned, or do both in one function",
                op=self._op,
            )
        self._is_chained = True
        found: list[Any] = []

        def call() -> Work | None:
            found.append(function(self._result()))
            return found[0].work if isinstance(found[0], Handle) else None

        def result() -> Any:
            return found[0].result() if isinstance(found[0], Handle) else found[0]

        return Handle(self._op, Chain(self.work, call), result, self.timeout_s)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an asyncio event loop without blocking it, and return the result.

        The pauses between checks grow from 0.1 to 10 ms. Any loop may await a handle, any
        number of times. If the task is cancelled, the request continues; await it again.

        Raises:
            ConfigError: no asyncio event loop runs in this thread; the request is unchanged.
            RequestTimeoutError: the request made no progress within the timeout of the box; it
                continues.
            SmboxError: the request failed; every call raises the same error.
        """
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        import asyncio  # noqa: PLC0415 - slow to import, and callers have imported it

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            message = "await a handle inside a running asyncio event loop; elsewhere wait()"
            raise ConfigError(message, op=self._op) from None
        pause_s = POLL_FIRST_S
        moved_s = time.monotonic()
        before = self.work.progress()
        while not self.done():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_MAX_S)
            now = self.work.progress()
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() >= moved_s + self.timeout_s:
                raise self._timeout(None, ADVICE, self.work.facts())
        return self.result()

    def outcome(self, timeout_s: float | None = None) -> str:
        """Return the known effect of the request.

        For a blocking verb that timed out, this asks the node what it has applied, if
        necessary, and prevents the rest from ever taking effect. The answer is then final.

        Args:
            timeout_s: seconds to wait for the node; None: the timeout of the box.

        Returns:
            "none", "partial" (see ``ranges_done``), "all", or "unknown": the node did not
            answer in time (ask again), has forgotten this client, or the request continues.

        Raises:
            ConfigError: ``timeout_s`` is not a number.
        """
        limit_s = self._limit_s(timeout_s)
        if self.is_over and self.known() == "unknown":
            self.work.advance(time.monotonic() + limit_s)
        return self.known()

    def ranges_done(self) -> list[tuple[int, int]]:
        """Return the byte ranges of the region that are certainly done, ascending."""
        return self.work.ranges_done()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else check_seconds(timeout_s)

    def _drive(self, timeout_s: float | None) -> bool:
        """Drive the request until the timeout; None: until it makes no progress."""
        limit_s = self._limit_s(timeout_s)
        self.check_not_over()
        try:
            if not self.is_done:
                self.is_done = self.work.drive(limit_s, restarts=timeout_s is None)
        except NestedCallError:
            raise
        except SmboxError as error:
            self.fail(error)
        if self.error is not None:
            self.work.mark_reported()
            raise self.error
        return self.is_done

    def check_not_over(self) -> None:
        """Raise ConfigError if this is the handle of a blocking verb that has timed out."""
        if self.is_over:
            raise ConfigError("this call has timed out and is over: ask outcome()", op=self._op)

    def _timeout(
        self, timeout_s: float | None, advice: str, reasons: dict[str, object]
    ) -> RequestTimeoutError:
        if ranges := self.work.ranges_done():
            reasons = {"ranges_done": ranges, **reasons}
        error = RequestTimeoutError(
            f"{self._op} was not done in time; {advice}",
            op=self._op,
            timeout_s=self._limit_s(timeout_s),
            outcome=self.known(),
            **reasons,
        )
        error.handle = self
        return error


def when_all(handles: Iterable[Handle[Any]]) -> Handle[tuple[Any, ...]]:
    """Return a handle that is done when all handles are; its result is the tuple of results.

    It waits for all requests, even after one has failed, and then raises the first error in the
    order of the handles. The requests may be of several regions, boxes and threads. Each handle
    can still be waited for by itself. The timeout is the longest of the handles' timeouts.

    Args:
        handles: handles of ``_nb`` verbs, ``then`` or ``when_all``; if there are none, the
            result is ``()``.

    Raises:
        TypeError: an element is not a handle.
        ConfigError: a handle is given twice, or is that of a blocking verb that has timed out.
    """
    each = tuple(handles)
    for handle in each:
        if not isinstance(handle, Handle):
            raise TypeError(f"when_all takes handles, not {type(handle).__name__}")
        handle.check_not_over()
    if len(set(map(id, each))) < len(each):
        raise ConfigError("when_all was given a handle twice: name each one once")
    timeout_s = max((handle.timeout_s for handle in each), default=math.inf)
    return Handle("when_all", Group(each), lambda: tuple(h.result() for h in each), timeout_s)
