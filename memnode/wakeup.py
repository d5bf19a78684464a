"""Ends the poll of a node's loop: a signal to stop, the end of a parent, news of a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from smbox.errors import ConfigError

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

_READ_NBYTES: Final = 4096


_LOG = logging.getLogger(__name__)


class Wakeup:
    """What a poll waits for besides its sockets: a pipe, and the end of a process.

    It is closed when nobody knows it any more: who may still ring it is not ours to say.

    Attributes:
        fds: to be polled; ``hear`` takes in what made one of them readable.
        is_over: a signal to stop came, or the parent has ended.

    Args:
        parent_pid: of the process that is served; None: there is none. It need not be the
            parent: so PR_SET_PDEATHSIG, which follows the thread that forked, is not enough.

    Raises:
        ConfigError: there is no such process, or it cannot be watched.
    """

    def __init__(self, parent_pid: int | None = None) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fds = [self._read_fd]
        self.is_over = False
        self._parent_pid = parent_pid
        if parent_pid is not None:
            self.fds.append(_watch(parent_pid))

    def __del__(self) -> None:
        for fd in (self._write_fd, *self.fds):
            os.close(fd)

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
        """Wake the poll; from any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full, and so readable
            os.write(self._write_fd, b"\0")

    def hear(self, fd: int) -> None:
        """Take in what made ``fd`` readable; another one than of ``fds`` is none of ours."""
        if fd == self._read_fd:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, _READ_NBYTES)
        elif fd in self.fds:
            _LOG.warning(
                "stopping: process %d, which this node serves, ended", self._parent_pid
            )
            self.is_over = True

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.is_over = True


def _watch(pid: int) -> int:
    """Return a descriptor that is readable once a process has ended."""
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError) as error:
        message = f"cannot watch the process that the node is to serve: {error}"
        raise ConfigError(message, parent_pid=pid) from None
