"""A request that is under way: ask whether it is done, wait for it, take its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Generic, Self, TypeVar, cast

from smbox.combining import Chain, Group, Tracked
from smbox.deadline import check_seconds
from smbox.errors import ConfigError, RequestTimeoutError, SmboxError
from smbox.work import NestedCallError, Work

T = TypeVar("T")
LOOK_FIRST_S: Final = 0.0001
LOOK_MAX_S: Final = 0.01
"""How long ``await`` leaves the event loop alone between two looks: at first, and at most."""
ADVICE: Final = "it goes on: wait again, or flush"


class Handle(Tracked, Generic[T]):
    """A request under way, as every ``_nb`` verb returns it.

    The arrays given to the verb are untouchable until the request is done. Dropping a
    handle cancels nothing: the request goes on while other requests or ``flush`` run.

    A blocking verb that raises RequestTimeoutError is over: ``error.handle`` is its handle, and
    only tells the ``outcome``.

    Attributes:
        timeout_s: how long ``wait`` waits when it is not told.
        work: the request, for one who drives several as one.

    Args:
        op: the verb, for errors.
        work: the request.
        result: called once, when it is done; its value is what ``result()`` returns.
        timeout_s: see the attribute.
    """

    def __init__(
        self, op: str, work: Work, result: Callable[[], T], timeout_s: float = math.inf
    ) -> None:
        super().__init__(work)
        self._op = op
        self._result: Callable[[], T] | None = result
        self.timeout_s = timeout_s
        self._is_chained = False
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
        return self.advance(0.0)

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
            raise self._timeout(timeout_s, ADVICE, self.work.facts())

    def finish(self, timeout_s: float | None = None) -> T:
        """Wait and return the result, as a blocking verb does.

        After anything else (a timeout, a KeyboardInterrupt) the request is over: nothing
        more of it is sent, and its arrays are not read again.
        """
        try:
            if self._drive(timeout_s):
                return self._take()
            facts = self.work.facts()  # what was in the way until now
            self.cancel()
        except BaseException:
            self.cancel()  # unless it has failed
            raise
        advice = "it is over; the error's handle tells its outcome()"
        raise self._timeout(timeout_s, advice, facts | self.work.facts())

    def result(self) -> T:
        """Wait as ``wait()`` does and return what the verb returns."""
        self.wait()
        return self._take()

    def then(self, function: Callable[[T], Any]) -> Handle[Any]:
        """Return a handle whose result is ``function(self.result())``.

        The function is called once, by the thread that waits for the new handle (or asks it
        ``done()``, or awaits it), after this request has succeeded; a flush does not call it.
        If it returns a handle, such as that of an ``_nb`` verb that it begins, the new handle
        waits for that one too, and has its result. If this request fails, the function is not
        called and the new handle fails with the same error; if the function raises, with that.

        Raises:
            ConfigError: a function was chained to this handle before, or it is that of a
                blocking verb that has timed out; nothing changed.
            TypeError: no function; nothing changed.
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
            found.append(function(self._take()))
            return found[0].work if isinstance(found[0], Handle) else None

        def result() -> Any:
            return found[0].result() if isinstance(found[0], Handle) else found[0]

        return Handle(self._op, Chain(self.work, call), result, self.timeout_s)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an asyncio event loop, as ``result()`` does, without blocking the loop.

        It looks with pauses that grow from 0.1 to 10 ms. Any loop may await, any number of
        times. When the task is cancelled, the request goes on; await it again.

        Raises:
            ConfigError: no asyncio event loop runs in this thread; the request is as it was.
            RequestTimeoutError: nothing of it got on for as long as the timeout of the box;
                the request goes on.
            SmboxError: the request failed; the same at every call.
        """
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        import asyncio  # noqa: PLC0415 - slow to import: the caller has it

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            message = "await a handle inside a running asyncio event loop; elsewhere wait()"
            raise ConfigError(message, op=self._op) from None
        pause_s, moved, before = LOOK_FIRST_S, time.monotonic(), self.work.progress()
        while not self.done():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MAX_S)
            if (now := self.work.progress()) != before:
                moved, before = time.monotonic(), now
            elif time.monotonic() >= moved + self.timeout_s:
                raise self._timeout(None, ADVICE, self.work.facts())
        return self.result()

    def outcome(self, timeout_s: float | None = None) -> str:
        """Tell what became of the request; of a blocking verb that timed out, for good.

        That asks the node what it has applied, if need be, and keeps what it did not apply
        from ever taking effect.

        Args:
            timeout_s: how long to ask the node; None: the timeout of the box.

        Returns:
            "none", "partial" (see ``ranges_done``), "all", or "unknown": the node did not
            answer in time (ask again), has forgotten this client, or the request goes on.

        Raises:
            ConfigError: ``timeout_s`` is no number.
        """
        limit_s = self._limit_s(timeout_s)
        if self.is_over and self.known() == "unknown":
            self.work.advance(time.monotonic() + limit_s)
        return self.known()

    def ranges_done(self) -> list[tuple[int, int]]:
        """List the byte ranges of the region that are certainly done, ascending."""
        return self.work.ranges_done()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else check_seconds(timeout_s)

    def _drive(self, timeout_s: float | None) -> bool:
        """Drive the request until the timeout, or the box's, and again while it gets on."""
        limit_s = self._limit_s(timeout_s)
        self.check_not_over()
        if self.error is not None:
            raise self.error
        try:
            while not self.is_done:
                before = self.work.progress()
                self.is_done = self.work.advance(time.monotonic() + limit_s)
                if timeout_s is not None or self.work.progress() == before:
                    break
        except NestedCallError:
            raise
        except SmboxError as error:
            self.fail(error)
            raise
        return self.is_done

    def check_not_over(self) -> None:
        """Raise ConfigError if this is the handle of a blocking verb that has timed out."""
        if self.is_over:
            raise ConfigError("this call has timed out and is over: ask outcome()", op=self._op)

    def _take(self) -> T:
        if self._result is not None:
            self._value = self._result()
            self._result = None
        return cast(T, self._value)

    def _timeout(
        self, timeout_s: float | None, advice: str, reasons: dict[str, object]
    ) -> RequestTimeoutError:
        facts: dict[str, object] = {"op": self._op, "timeout_s": self._limit_s(timeout_s)}
        facts["outcome"] = self.known()
        ranges = self.work.ranges_done()
        if ranges:
            facts["ranges_done"] = ranges
        message = f"{self._op} was not done in time; {advice}"
        error = RequestTimeoutError(message, **facts, **reasons)
        error.handle = self
        return error


def when_all(handles: Iterable[Handle[Any]]) -> Handle[tuple[Any, ...]]:
    """Return a handle over several: its result is the tuple of their results, in this order.

    All are waited for, also after one has failed; then the first error in this order is
    raised. The requests may be of several regions, boxes and threads. Each handle can still
    be waited for by itself. The timeout is the longest of theirs.

    Args:
        handles: of ``_nb`` verbs, ``then`` or ``when_all``; none: the result is ``()``.

    Raises:
        TypeError: one is no handle.
        ConfigError: one is there twice, or is that of a blocking verb that has timed out.
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
