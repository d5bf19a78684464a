"""What each thread of a process has of a path: a queue on mapped memory, or a channel."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from smbox.client.channel import Channel
from smbox.errors import SmboxError
from smbox.paths.local_queue import LocalQueue

H = TypeVar("H", LocalQueue, Channel)
"""One thread's half of a path."""


class ThreadedPath(Generic[H]):
    """The part of a data path that knows its threads' halves; a subclass makes them.

    Any thread of a Box uses its path; what belongs to a thread (writer, channel) is its half.
    """

    def __init__(self) -> None:
        self._halves: list[H] = []
        self._mutex = threading.RLock()  # a signal handler may make a half in a making
        self._mine = threading.local()
        self._is_closed = False

    def flush(self, deadline_s: float) -> bool:
        """Complete every change begun before this call, by any thread; False at the deadline.

        All are driven, also behind one that fails.

        Raises:
            SmboxError: what the first failed change failed with, if nobody waited for it.
        """
        is_complete = True
        first_error: SmboxError | None = None
        with self._mutex:
            halves = list(self._halves)
        for half in halves:
            try:
                is_complete = half.drain(deadline_s) and is_complete
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return is_complete

    def say_bye(self) -> None:
        """Tell the node, where it has to know, that this client leaves; does not wait."""

    def close(self) -> None:
        """Let go of everything; changes under way are not waited for. Idempotent."""
        self.say_bye()
        with self._mutex:
            halves = self._let_go()
        for half in halves:
            half.close()

    def abandon(self) -> None:
        """Let go after a fork, in the child: never send, never unlock, never unlink.

        Other threads of the parent may have held its mutexes, which stay held for ever.
        """
        self._mutex = threading.RLock()
        for half in self._let_go():
            half.abandon()

    def _let_go(self) -> list[H]:
        self._is_closed = True
        halves, self._halves = self._halves, []
        self._mine = threading.local()
        return halves

    def _half(self) -> H:
        try:
            half: H = self._mine.half
        except AttributeError:
            half = self._mine.half = self._new_half()
        return half

    def _new_half(self) -> H:
        """Make a half for this thread, or hand it that of a thread that has ended."""
        raise NotImplementedError
