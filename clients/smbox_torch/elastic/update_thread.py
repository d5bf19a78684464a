"""One background thread that runs a worker's exchanges behind its computation.

One exchange at a time: begin, compute, then finish, which waits for what is left of it. What
the exchange raises is raised by finish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from smbox.errors import ConfigError

__all__ = ["UpdateThread"]


class UpdateThread:
    """A thread with room for one piece of work; not thread-safe itself.

    Attributes:
        took_s: how long the last finished work ran, in seconds.
        waited_s: how long finish had to wait for it, in seconds.
    """

    def __init__(self) -> None:
        name = f"{threading.current_thread().name}-update"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future: Future[float] | None = None
        self._is_closed = False
        self.took_s = 0.0
        self.waited_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether work was begun and not finished yet."""
        return self._future is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Hand work to the thread; the work before it must have been finished.

        Raises:
            ConfigError: the thread was closed; nothing was begun.
        """
        assert self._future is None, "one exchange at a time"
        if self._is_closed:
            raise ConfigError("the optimizer was closed: no exchange begins any more")
        self._future = self._pool.submit(_timed, work)

    def finish(self) -> None:
        """Wait until the work is done and raise what it raised; harmless when idle."""
        if self._future is None:
            return
        began_s = time.monotonic()
        wait([self._future])  # an interrupt leaves here, and the work can still be finished
        future, self._future = self._future, None
        self.took_s = future.result()
        self.waited_s = time.monotonic() - began_s

    def close(self) -> None:
        """End the thread, after the work that it may still be doing."""
        self._is_closed = True
        self._pool.shutdown(wait=True)


def _timed(work: Callable[[], None]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s
