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


T = TypeVar("T", bound="QueuedWork")


class ThreadQueue(Generic[T]):
    """One thread's queue of a path; any thread may use it, one at a time.

    A verb inside a verb of the same thread is an error: it would wait for itself.

    Attributes:
        thread: whose it is.
        completed: how many requests of its work have ended.
    """

    def __init__(self) -> None:
        self.completed = 0
        self.thread = threading.current_thread()
        self._renew_lock()
        self._unreported: SmboxError | None = None  # of a change, and nobody was told of it

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        raise NotImplementedError

    @property
    def is_orphaned(self) -> bool:
        """Whether its thread has ended, with nothing under way."""
        return self.is_idle and not self.thread.is_alive()

    def drain(self, deadline_s: float) -> bool:
        """Move all that is under way now until it is done; False at the deadline.

        Raises:
            SmboxError: the first failure of a change that nobody was told of.
        """
        if not self._drive_all(deadline_s):
            return False
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            raise unreported
        return True

    def begin(self, work: T) -> None:
        """Take work, and do of it what can be done at once."""
        raise NotImplementedError

    def drive(self, work: T, deadline_s: float) -> bool:
        """Move work, begun or not, and what is before it; False at the deadline."""
        raise NotImplementedError

    def cancel(self, work: T) -> None:
        """Let the caller of work go: its arrays are not read any more. Idempotent."""
        raise NotImplementedError

    def mark_reported(self, work: T) -> None:
        """Note that somebody was told what work failed with."""
        if self._unreported is work.error:
            self._unreported = None

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


class QueuedWork(Work):
    """Work of one thread's queue of a path: units ``[first, limit)``, in their order.

    Units are bytes of the region, items or rows, as a subclass says.

    Attributes:
        queue: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
        at: all before it is done.
        is_begun: its queue has it.
        is_cancelled: its caller has left.
        is_done: it ended, well or not.
        error: what it failed with.
        has_ranges: its units are bytes of the region, certain as soon as they are done.
    """

    has_ranges = True

    def __init__(self, queue: ThreadQueue[Any], first: int, limit: int) -> None:
        self.queue = queue
        self.first = self.at = first
        self.limit = limit
        self.is_begun = self.is_cancelled = self.is_done = False
        self.error: SmboxError | None = None
        self._completed = 0

    def begin(self) -> None:
        """Join the queue, unless that was done."""
        if not self.is_begun:
            self.queue.begin(self)

    def advance(self, deadline_s: float) -> bool:
        """Drive the queue until this is done; begins it, if need be."""
        if not self.is_done and not self.queue.drive(self, deadline_s):
            return False
        if self.error is not None and not self.is_cancelled:
            self.queue.mark_reported(self)
            raise self.error
        return True

    def cancel(self) -> None:
        """Leave the queue; what is done stays."""
        self.queue.cancel(self)

    def progress(self) -> int:
        """Return how many requests of the queue have ended: first those before this.

        Those behind it are not counted: one that is done would seem to get on for ever.
        """
        if not self.is_done:
            self._completed = self.queue.completed
        return self._completed

    def outcome(self) -> str:
        """Tell what is known of the effect."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is certainly done."""
        return [(self.first, self.at)] if self.has_ranges and self.at > self.first else []

    def facts(self) -> dict[str, object]:
        """Tell what is in the way of the queue."""
        return self.queue.facts()


H = TypeVar("H", bound=ThreadQueue[Any])


class ThreadedPath(Generic[H]):
    """The part of a data path that knows its threads' queues; a subclass makes them.

    Any thread of a Box uses its path; what belongs to a thread (writer, channel) is its queue.
    """

    def __init__(self) -> None:
        self._queues: list[H] = []
        self._mutex = threading.RLock()  # a signal handler may make a queue in a making
        self._local = threading.local()
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
            queues = list(self._queues)
        for queue in queues:
            try:
                is_complete = queue.drain(deadline_s) and is_complete
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
            queues = self._take_queues()
        for queue in queues:
            queue.close()

    def abandon(self) -> None:
        """Let go after a fork, in the child: never send, never unlock, never unlink.

        Other threads of the parent may have held its mutexes, which stay held for ever.
        """
        self._mutex = threading.RLock()
        for queue in self._take_queues():
            queue.abandon()

    def _take_queues(self) -> list[H]:
        self._is_closed = True
        queues, self._queues = self._queues, []
        self._local = threading.local()
        return queues

    def _queue(self) -> H:
        try:
            queue: H = self._local.queue
        except AttributeError:
            queue = self._local.queue = self._new_queue()
        return queue

    def _new_queue(self) -> H:
        """Make a queue for this thread, or hand it that of a thread that has ended."""
        raise NotImplementedError
