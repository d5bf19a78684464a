"""Ends the poll of the node's loop: a signal to stop, or another thread that has news."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

_READ_NBYTES: Final = 4096


class Wakeup:
    """A pipe that a poll can wait for.

    It is closed when nobody knows it any more: who may still ring it is not ours to say.

    Attributes:
        fd: readable once it was rung, or a signal to stop came.
        signal: number of the signal to stop that came, or 0.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signal = 0

    def __del__(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)

    @contextmanager
    def catching_signals(self) -> Iterator[None]:
        """Catch the signals to stop in this block; only in the main thread."""
        former = {each: signal.signal(each, self._note) for each in STOPPING}
        wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for each, handler in former.items():
                signal.signal(each, handler)

    def ring(self) -> None:
        """Make ``fd`` readable; from any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full, and so readable
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Make ``fd`` unreadable until it is rung again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, _READ_NBYTES)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
