"""Lets another thread end the poll of the node's loop."""

from __future__ import annotations

import contextlib
import os


class Waker:
    """An open file that becomes readable when it is rung.

    It is closed when nobody knows it any more: who may still ring it is not ours to say.

    Attributes:
        fd: for the poll.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)

    def ring(self) -> None:
        """Make it readable; from any thread."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make it unreadable until it is rung again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
