"""What each thread of a process has of a path, a queue or a channel, and the work in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

from smbox.errors import SmboxError
from smbox.paths.work import ByteRange
from smbox.work import NestedCallError, Work

NESTED: Final = (
    "a signal handler or finalizer cannot use the box inside another call of its thread; let it"
    " set a flag and return"
)


T = TypeVar("T", bound="ThreadWork")


class Half(Generic[T]):
    """One thread's half of a path; any thread may use it, one at a time.

    A verb inside a verb of the same thread is an error: it would wait for itself.

    Attributes:
        thread: whose it is.
        moves: how many requests of its work have ended.
    """

    def __init__(self) -> None:
        self.moves = 0
        self.thread = threading.current_thread()
        self._renew_lock()
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

    def begin(self, work: T) -> None:
        """Take work, and do of it what can be done at once."""
        raise NotImplementedError

    def drive(self, work: T, deadline_s: float) -> bool:
        """Move work, begun or not, and what is before it; False at the deadline."""
        raise NotImplementedError

    def leave(self, work: T) -> None:
        """Let the caller of work go: its arrays are not read any more. Idempotent."""
        raise NotImplementedError

    def told(self, work: T) -> None:
        """Note that somebody was told what work failed with."""
        if self._unseen is work.error:
            self._unseen = None

    def facts(self) -> dict[str, object]:
        """Tell what is in the way."""
        raise NotImplementedError

    def close(self) -> None:
        """End what is under way, and let go."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let go in a forked child, whose copy of the lock may be held for ever."""
        self._renew_lock()

    def _drive_all(self, deadline_s: float) -> bool:
        """Drive what is under way now; False at the deadline."""
        raise NotImplementedError

    def _renew_lock(self) -> None:
        """Make a lock that nobody holds; it knows its owner, and nobody enters it twice."""
        self._lock = threading.RLock()
        is_owned = self._lock._is_owned  # type: ignore[attr-defined] # noqa: SLF001 - as Condition
        self._is_inside: Callable[[], bool] = is_owned

    def _entered(self) -> AbstractContextManager[bool]:
        """Return what keeps other threads out; NestedCallError if this one is inside."""
        if self._is_inside():
            raise NestedCallError(NESTED)
        return self._lock


class ThreadWork(Work):
    """Work of one thread's half of a path: units ``[first, limit)``, in their order.

    Units are bytes of the region, items or rows, as a subclass says.

    Attributes:
        half: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
        at: all before it is done.
        is_begun: its half has it.
        is_over: its caller has left.
        is_done: it ended, well or not.
        error: what it failed with.
        has_ranges: its units are bytes of the region, certain as soon as they are done.
    """

    has_ranges = True

    def __init__(self, half: Half[Any], first: int, limit: int) -> None:
        self.half = half
        self.first = self.at = first
        self.limit = limit
        self.is_begun = self.is_over = self.is_done = False
        self.error: SmboxError | None = None
        self._moves = 0

    def begin(self) -> None:
        """Join the half, unless that was done."""
        if not self.is_begun:
            self.half.begin(self)

    def advance(self, deadline_s: float) -> bool:
        """Drive the half until this is done; begins it, if need be."""
        if not self.is_done and not self.half.drive(self, deadline_s):
            return False
        if self.error is not None and not self.is_over:
            self.half.told(self)
            raise self.error
        return True

    def cancel(self) -> None:
        """Leave the half; what is done stays."""
        self.half.leave(self)

    def progress(self) -> int:
        """Return how many requests of the half have ended: first those before this.

        Those behind it are not counted: one that is done would seem to get on for ever.
        """
        if not self.is_done:
            self._moves = self.half.moves
        return self._moves

    def outcome(self) -> str:
        """Tell what is known of the effect."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is certainly done."""
        return [(self.first, self.at)] if self.has_ranges and self.at > self.first else []

    def facts(self) -> dict[str, object]:
        """Tell what is in the way of the half."""
        return self.half.facts()


H = TypeVar("H", bound=Half[Any])


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
