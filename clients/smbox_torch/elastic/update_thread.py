"""A background thread that runs a worker's exchanges while the worker computes.

It runs one exchange at a time: ``begin`` starts it, and ``finish`` waits until it has ended and
raises its exception, if any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from smbox.errors import ConfigError
from smbox.limits import start_thread

__all__ = ["UpdateThread"]


class UpdateThread:
    """A thread that runs one task at a time; the object is not thread-safe.

    Attributes:
        took_s: run time of the last finished task, in seconds.
        waited_s: time that ``finish`` waited for it, in seconds.

    Raises:
        SystemLimitError: the thread cannot be started.
    """

    def __init__(self) -> None:
        name = f"{threading.current_thread().name}-update"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        # Start it now: a pool that cannot start its thread for a task runs that task later.
        start_thread(partial(self._pool.submit, int))
        self._future: Future[float] | None = None
        self._task: Callable[[], object] = int
        self._is_closed = False
        self.took_s = 0.0
        self.waited_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a task was begun and not finished yet."""
        return self._future is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Submit a task to the thread; the previous task must have been finished.

        Raises:
            ConfigError: the thread was closed; nothing was begun.
        """
        assert self._future is None, "one exchange at a time"
        if self._is_closed:
            raise ConfigError("the optimizer was closed: it begins no exchange")
        future: Future[float] = Future()
        self._task = partial(_run, future, work)
        self._future = future  # first: after an interrupt in submit, finish waits for the task
        self._pool.submit(self._task)

    def finish(self) -> None:
        """Wait for the task and raise its exception, if any; no effect when idle."""
        if self._future is None:
            return
        began_s = time.monotonic()
        if not (self._future.running() or self._future.done()):
            self._pool.submit(self._task)  # an interrupt may have stopped begin; it runs once
        wait([self._future])  # after an interrupt here, finish can be called again
        try:
            self.took_s = self._future.result()
        finally:
            self._future = None
        self.waited_s = time.monotonic() - began_s

    def close(self) -> None:
        """Wait for the current task, if any, and stop the thread."""
        self._is_closed = True
        self._pool.shutdown(wait=True)


def _run(future: Future[float], work: Callable[[], None]) -> None:
    """Do the work of a future, unless it was done."""
    if future.done():
        return
    future.set_running_or_notify_cancel()
    began_s = time.monotonic()
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - finish raises it
        future.set_exception(error)
    else:
        future.set_result(time.monotonic() - began_s)
