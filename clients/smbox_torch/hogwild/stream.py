"""A thread that repeats a function until it is stopped.

Its caller uses no ``Event``, for the reason in smbox_torch/completion.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from smbox.limits import start_thread
from smbox_torch.completion import Completion

__all__ = ["Stream"]


class Stream:
    """Repeat a function in a thread; its exception ends the thread and is raised by ``check``.

    The last call begins after :meth:`close` was called. It is in the thread, too: Ctrl-C
    interrupts the wait for it, but not the function.

    Args:
        work: the function.
        pause_s: pause between two calls, in seconds.
    """

    def __init__(self, work: Callable[[], None], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._error: BaseException | None = None
        self._was_running = False
        self._stops: SimpleQueue[None] = SimpleQueue()
        self._ended = Completion()
        name = f"{threading.current_thread().name}-stream"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread.start)

    def _run(self) -> None:
        try:
            self._work()
            while not self._is_stopped():
                self._work()
            self._work()
        except BaseException as error:  # noqa: BLE001 - check raises it
            self._error = error
        finally:
            self._ended.set()

    def _is_stopped(self) -> bool:
        try:
            self._stops.get(timeout=self._pause_s)
        except Empty:
            return False
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended; ``check`` then knows the exception that ended it."""
        return self._ended.is_set

    def check(self) -> None:
        """Raise the exception that ended the thread, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop after the current call and a last one; after an interrupt, call it again.

        Raises:
            BaseException: the exception that ended the thread, if it was not raised yet.
        """
        self._was_running |= self._thread.is_alive()
        self._stops.put(None)
        if self._was_running:
            self._ended.wait()  # join would not wait again (CPython 3.11)
        self._thread.join()
        self.check()
