"""SIGTERM and SIGINT as an open file that a poll can wait for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Remembers that the process was told to stop.

    Attributes:
        fd: readable once a signal has come.
        number: of the signal that came, or 0.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.number = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Catch the signals in this block; only in the main thread."""
        former = {each: signal.signal(each, self._note) for each in STOPPING}
        wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for each, handler in former.items():
                signal.signal(each, handler)
            os.close(self.fd)
            os.close(self._write_fd)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
