"""A mutex held for one call: the wait for it has a deadline, and Ctrl-C leaves it free."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from smbox.deadline import left_s, request_timeout_s
from smbox.errors import RequestTimeoutError
from smbox.work import Exclusive, exclusive

T = TypeVar("T")


def refuse() -> NoReturn:
    """Raise the error of a call that waited too long for the mutex."""
    message = "another thread of this process waits for the node; call again"
    raise RequestTimeoutError(message, outcome="none")


def holding(
    mutex: threading.Lock | threading.RLock,
    deadline_s: float | None,
    job: Callable[[], T],
    *,
    late: Callable[[], T],
) -> T:
    """Call a job with a mutex whose owner may wait for the node; return the job's result.

    Not a context manager: Ctrl-C at the start of its ``__exit__`` would leave the mutex held.

    Args:
        mutex: released when the job ends.
        deadline_s: end of the wait for the mutex; None: wait without a deadline.
        job: called while this thread holds the mutex.
        late: called instead if another thread held the mutex until the deadline.
    """
    wait_s = -1 if deadline_s is None else min(left_s(deadline_s), threading.TIMEOUT_MAX)
    got: list[bool] = []
    try:
        got.extend(map(mutex.acquire, (True,), (wait_s,)))  # one call: signals come at its end
        return job() if got[0] else late()
    finally:
        if got and got[0]:  # without a call, at whose end Ctrl-C would prevent the release
            mutex.release()


class Mutex(Exclusive):
    """A mutex held for one call at a time; a call inside one of its thread is refused."""

    def __init__(self) -> None:
        self.renew_locks()

    def holding(
        self,
        deadline_s: float | None,
        job: Callable[[], T],
        *,
        late: Callable[[], T] | None = None,
    ) -> T:
        """Call a job; see the function ``holding``.

        Without ``late``, the wait ends when a request of the caller would end: another thread
        holds the mutex for a moment at a time, also at the caller's deadline.

        Raises:
            NestedCallError: this thread is inside a job; nothing was done.
            RequestTimeoutError: there is no ``late``, and another thread held the mutex until
                then; nothing was done.
        """
        if late is None:
            late = refuse
            if deadline_s is not None:
                deadline_s = time.monotonic() + request_timeout_s(deadline_s)
        return holding(self._lock, deadline_s, lambda: self._run(job), late=late)

    @exclusive
    def _run(self, job: Callable[[], T]) -> T:
        return job()
