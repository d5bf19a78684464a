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
        self._future = self._pool.submit(_timed, work)

    def finish(self) -> None:
        """Wait for the task and raise its exception, if any; no effect when idle."""
        if self._future is None:
            return
        began_s = time.monotonic()
        wait([self._future])  # after an interrupt here, finish can be called again
        future, self._future = self._future, None
        self.took_s = future.result()
        self.waited_s = time.monotonic() - began_s

    def close(self) -> None:
        """Wait for the current task, if any, and stop the thread."""
        self._is_closed = True
        self._pool.shutdown(wait=True)


def _timed(work: Callable[[], None]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s
