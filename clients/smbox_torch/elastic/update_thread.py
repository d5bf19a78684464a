"""A background thread that runs a worker's exchanges while the worker computes.

It runs one exchange at a time: ``begin`` starts it, and ``finish`` waits until it has ended and
raises its exception, if any.

The caller's side uses no condition and no future, for the reason in smbox_torch/completion.py.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from smbox.errors import ConfigError
from smbox.limits import start_thread
from smbox_torch.completion import Completion

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
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._task: _Task | None = None
        self._is_closed = False
        self.took_s = 0.0
        self.waited_s = 0.0
        name = f"{threading.current_thread().name}-update"
        self._thread = threading.Thread(
            target=_serve, args=(self._tasks,), name=name, daemon=True
        )
        self._end = partial(_end, self._thread, self._tasks)
        start_thread(self._thread.start)
        weakref.finalize(self, self._tasks.put, None).atexit = False  # if it is never closed
        atexit.register(self._end)  # before the boxes close; torch may abort in a daemon thread

    @property
    def busy(self) -> bool:
        """Whether a task was begun and not finished yet."""
        return self._task is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Submit a task to the thread; the previous task must have been finished.

        Raises:
            ConfigError: the thread was closed; nothing was begun.
        """
        assert self._task is None, "one exchange at a time"
        if self._is_closed:
            raise ConfigError("the optimizer was closed: it begins no exchange")
        self._task = _Task(work)  # first: after an interrupt in put, finish waits for the task
        self._tasks.put(self._task)

    def finish(self) -> None:
        """Wait for the task and raise its exception, if any; no effect when idle."""
        task = self._task
        if task is None:
            return
        began_s = time.monotonic()
        if not task.is_begun:
            self._tasks.put(task)  # an interrupt may have stopped begin; it runs once
        task.ended.wait()  # after an interrupt here, finish can be called again
        try:
            if task.error is not None:
                raise task.error
            self.took_s = task.took_s
        finally:
            self._task = None
        self.waited_s = time.monotonic() - began_s

    def close(self) -> None:
        """Wait for the current task, if any, and stop the thread."""
        self._is_closed = True
        self._end()
        atexit.unregister(self._end)


class _Task:
    """One run of a function.

    Args:
        work: the function.

    Attributes:
        is_begun: whether the thread has begun it.
        ended: its end.
        error: the exception that it raised, or None.
        took_s: its run time, in seconds.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.is_begun = False
        self.ended = Completion()
        self.error: BaseException | None = None
        self.took_s = 0.0
        self._work = work

    def run(self) -> None:
        """Run it, unless it was begun before."""
        if self.is_begun:
            return
        self.is_begun = True
        began_s = time.monotonic()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - finish raises it
            self.error = error
        self.took_s = time.monotonic() - began_s
        self.ended.set()


def _end(thread: threading.Thread, tasks: SimpleQueue[_Task | None]) -> None:
    """End the thread after its task, and wait for it."""
    tasks.put(None)
    thread.join()


def _serve(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # while this thread waits, it keeps no owner of an UpdateThread
