"""What each thread of a process has of a path: a queue on mapped memory, or a channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from smbox.errors import ConfigError, SmboxError

NESTED: Final = (
    "a signal handler or finalizer cannot use the box inside another call of its thread; let it"
    " set a flag and return"
)


class Half:
    """One thread's half of a path; any thread may use it, one at a time.

    A verb inside a verb of the same thread is an error: it would wait for itself.

    Attributes:
        thread: whose it is.
    """

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self._lock = threading.Lock()
        self._owner = 0  # the thread inside; another's, or stale, when the lock is free
        self._unseen: SmboxError | None = None  # of a change, and nobody was told of it

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        raise NotImplementedError

    @property
    def is_left(self) -> bool:
        """Whether its thread has ended, with nothing under way."""
        return self.is_idle and not self.thread.is_alive()

    def drain(self, deadline_s: float) -> bool:
        """Move all that is under way now until it is done; False at the deadline.

        Raises:
            SmboxError: the first failure of a change that nobody was told of.
        """
        if not self._drive_all(deadline_s):
            return False
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            raise unseen
        return True

    def seen(self, error: SmboxError) -> None:
        """Note that somebody was told of ``error``."""
        if self._unseen is error:
            self._unseen = None

    def close(self) -> None:
        """End what is under way, and let go."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let go in a forked child, whose copy of the lock may be held for ever."""
        self._lock = threading.Lock()
        self._owner = 0

    def _drive_all(self, deadline_s: float) -> bool:
        """Drive what is under way now; False at the deadline."""
        raise NotImplementedError

    def _is_inside(self) -> bool:
        """Tell whether this is a call from inside another one of the same thread."""
        return self._owner == threading.get_ident() and self._lock.locked()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Keep other threads out; ConfigError if this one is inside."""
        if self._is_inside():
            raise ConfigError(NESTED)
        mine = threading.get_ident()
        try:
            with self._lock:
                self._owner = mine
                yield
        finally:
            if self._owner == mine:
                self._owner = 0


H = TypeVar("H", bound=Half)


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
