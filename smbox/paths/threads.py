"""What each thread of a process has of a path: a queue on mapped memory, or a channel."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from smbox.errors import SmboxError


class Half(Protocol):
    """One thread's half of a path."""

    def drain(self, deadline_s: float) -> bool:
        """Drive it until nothing is left; False at the deadline."""

    def close(self) -> None:
        """Let go of it."""

    def abandon(self) -> None:
        """Let go of it after a fork, in the child."""


H = TypeVar("H", bound=Half)


class ThreadedPath(Generic[H]):
    """The part of a DataPath that knows its threads' halves; a subclass makes them."""

    def __init__(self) -> None:
        self._halves: list[H] = []
        self._mutex = threading.RLock()  # a signal handler may make a half in a making
        self._mine = threading.local()
        self._is_closed = False

    def flush(self, deadline_s: float) -> bool:
        """Drive what every thread has under way, also behind one that fails; see DataPath."""
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

    def close(self) -> None:
        """Close every thread's half; see DataPath."""
        with self._mutex:
            halves = self._let_go()
        for half in halves:
            half.close()

    def abandon(self) -> None:
        """Drop all in a forked child, where other threads' mutexes may be held for ever."""
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
