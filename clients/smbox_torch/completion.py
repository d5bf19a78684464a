"""Completion: the end of a thread's work, for which one other thread waits."""

from __future__ import annotations

import threading

__all__ = ["Completion"]


class Completion:
    """Set once, by a thread that handles no signals; one other thread waits for it.

    ``threading.Event`` is Python code: Ctrl-C in its ``wait`` may leave its lock held, and then
    both threads hang. After an interrupt here, ``wait`` can be called again.

    Attributes:
        is_set: whether the work has ended.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()  # held until the end
        self._lock.acquire()

    def set(self) -> None:
        """Note the end of the work."""
        self.is_set = True  # first: after an interrupt in ``wait``, that returns at once
        self._lock.release()

    def wait(self) -> None:
        """Wait until the work has ended."""
        if not self.is_set:
            self._lock.acquire()
