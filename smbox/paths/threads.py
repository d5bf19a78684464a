"""The queue that each thread has on a data path, and the requests in it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from copy import copy
from typing import Any, Final, Generic, TypeVar

from smbox.errors import PeerLostError, SmboxError
from smbox.paths.requests import ByteRange
from smbox.work import PAUSE_MAX_S, Exclusive, NestedCallError, Pause, Work

_LOG = logging.getLogger(__name__)

T = TypeVar("T", bound="QueuedWork")
UNREPORTED_MAX: Final = 1000
"""Number of errors that a queue keeps for ``flush``; it forgets older ones."""


class ThreadQueue(Exclusive, Generic[T]):
    """The requests of one thread on a data path; any thread may use it, one at a time.

    Attributes:
        thread: the owner.
        completed: number of requests, or parts of requests, that have ended.
        unreported: errors of changes that no call has raised, in order.
        pause_max_s: longest pause of a call that drives the queue.
    """

    pause_max_s = PAUSE_MAX_S

    def __init__(self) -> None:
        self.completed = 0
        self.thread = threading.current_thread()
        self.unreported: deque[SmboxError] = deque(maxlen=UNREPORTED_MAX)
        self.renew_locks()

    @property
    def is_idle(self) -> bool:
        """Return True if no request is in flight or waiting."""
        raise NotImplementedError

    def drain(self, deadline_s: float) -> bool:
        """Complete all changes that are queued now; return False at the deadline."""
        return all(self.drive(work, deadline_s) for work in self._pending())

    def begin(self, work: T) -> None:
        """Queue a request, and do what can be done at once."""
        try:
            self._run(work, None)
        finally:
            self._release_locks()

    def drive(self, work: T, deadline_s: float) -> bool:
        """Queue a request if it is not queued, and run the queue until the request is done.

        Returns:
            False at the deadline.
        """
        try:
            if self._run(work, deadline_s):
                return True
            pause = Pause(max_s=self.pause_max_s)
            while pause.sleep(deadline_s):  # lets other threads get the queue's lock
                if self._run(work, deadline_s):
                    return True
        finally:
            self._release_locks()
        return False

    def has_work(self) -> bool:
        """Return True if a change is neither done nor cancelled."""
        with suppress(NestedCallError):  # a signal handler inside a call
            return any(not (work.is_done or work.is_cancelled) for work in self._pending())
        return True

    def cancel(self, work: T) -> None:
        """Cancel a request: its arrays are not accessed any more. Idempotent."""
        raise NotImplementedError

    def await_array(self, work: T) -> None:
        """Wait until nothing reads the arrays of a failed request; for a second at most."""

    def facts(self) -> dict[str, object]:
        """Return what blocks the queue, for a timeout error."""
        raise NotImplementedError

    def close(self) -> None:
        """Fail all requests and release all resources."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Release the queue in a forked child."""
        raise NotImplementedError

    def _run(self, work: T, deadline_s: float | None) -> bool:
        """Queue a request if it is not queued, and run the queue; return True once it is done.

        Without a deadline it never waits.
        """
        raise NotImplementedError

    def _release_locks(self) -> None:
        """Release stripes that are held only while a caller drives the queue."""

    def _pending(self) -> list[T]:
        """Return the changes that have not ended, in order."""
        raise NotImplementedError


class QueuedWork(Work):
    """A request in a thread's queue: units ``[first, limit)``, done in ascending order.

    Units are bytes of the region, items or rows, as the subclass says.

    Attributes:
        queue: of the thread that begins the request.
        first: first unit.
        limit: behind the last unit.
        at: all units before it are done.
        is_begun: the request was added to the queue.
        is_cancelled: the caller has cancelled it.
        is_done: it ended, with or without an error.
        error: the reason for a failure.
        error_copy: of ``error``, without traceback, which would keep arrays until a flush.
        is_change: it has an outcome, and ``flush`` raises its error.
        has_ranges: units are bytes of the region, and certain as soon as they are done.
    """

    has_ranges = True
    is_change = False
    error_copy: SmboxError

    def __init__(self, queue: ThreadQueue[Any], first: int, limit: int) -> None:
        self.queue = queue
        self.first = self.at = first
        self.limit = limit
        self.is_begun = self.is_cancelled = self.is_done = False
        self.error: SmboxError | None = None
        self._completed = 0

    def begin(self) -> None:
        """Add the request to the queue, unless that was done."""
        if not self.is_begun:
            self.queue.begin(self)

    def advance(self, deadline_s: float) -> bool:
        """Run the queue until this request is done; begin it if need be."""
        if not self.is_done and not self.queue.drive(self, deadline_s):
            return False
        if self.error is not None and not self.is_cancelled:
            self.queue.await_array(self)
            raise self.error
        return True

    def mark_reported(self) -> None:
        """Take the error back from the queue."""
        if self.error is not None:
            with suppress(ValueError):  # a flush has raised it, or another call
                self.queue.unreported.remove(self.error_copy)

    def fail(self, error: SmboxError) -> None:
        """Fail with ``error``, unless the request is done."""
        if not self.is_done:
            self.error_copy = copy(error)
            if self.is_change and not self.is_cancelled:  # before a waiting thread sees it done
                self.queue.unreported.append(self.error_copy)
            # One statement: after an interrupt no request has an error and is not done.
            self.error, self.is_done = error, True

    def cancel(self) -> None:
        """Take the request out of the queue; what is done stays done."""
        self.queue.cancel(self)

    def progress(self) -> int:
        """Return how many requests of the queue have ended.

        The number stops growing once this request is done: those behind it do not count.
        """
        if not self.is_done:
            self._completed = self.queue.completed
        return self._completed

    def outcome(self) -> str:
        """Return the known outcome; see ``Work``."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def ranges_done(self) -> list[ByteRange]:
        """Return the range that is certainly done."""
        return [(self.first, self.at)] if self.has_ranges and self.at > self.first else []

    def facts(self) -> dict[str, object]:
        """Return what blocks the queue."""
        return self.queue.facts()


H = TypeVar("H", bound=ThreadQueue[Any])


class ThreadedPath(Generic[H]):
    """The base of a data path: one queue for each thread, with its writer or channel.

    The next new thread takes over the queue of a thread that has ended, once it is idle.
    """

    def __init__(self) -> None:
        self._queues: list[H] = []  # changed under the mutex; a copy of it needs none
        self._mutex = threading.RLock()  # a signal handler may interrupt _new_queue and call it
        self._local = threading.local()
        self._is_closed = False

    def flush(self, deadline_s: float) -> bool:
        """Complete every change begun before this call, by any thread; False at the deadline.

        A change that fails does not stop the others.

        Raises:
            SmboxError: the error of the first failed change that no call has raised yet; a note
                tells how many others failed.
            PeerLostError: another thread has closed the box.
        """
        errors: list[SmboxError] = []
        queues = list(self._queues)
        if self._is_closed:
            raise PeerLostError("the box was closed", outcome="unknown")
        late = [queue for queue in queues if not queue.drain(deadline_s)]
        for queue in queues:
            with suppress(IndexError):  # other threads add to it, and flush, meanwhile
                while True:
                    errors.append(queue.unreported.popleft())
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors) - 1} more changes failed")
            raise errors[0]
        return not late

    def check_not_nested(self) -> None:
        """Raise NestedCallError if this thread is inside a call on this path."""
        queue = getattr(self._local, "queue", None)  # once: a close replaces it
        if queue is not None:
            queue.check_not_nested()

    def say_bye(self) -> None:
        """Announce to the node, if it needs to know, that this client leaves; never wait."""

    def close(self) -> None:
        """Release everything without waiting for changes in flight. Idempotent."""
        self.say_bye()
        with self._mutex:
            queues = self._take_queues()
        if any(queue.has_work() for queue in queues):
            _LOG.warning("the box was closed before all changes were done: flush first")
        for queue in queues:
            queue.close()

    def abandon(self) -> None:
        """Release everything in a forked child: send, unlock and unlink nothing."""
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
        """Return the idle queue of a thread that has ended, or a new one, for this thread."""
        with self._mutex:
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            for queue in self._queues:
                if queue.is_idle and not queue.thread.is_alive():
                    queue.thread = threading.current_thread()
                    return queue
            queue = self._open_queue()
            self._queues.append(queue)
            return queue

    def _open_queue(self) -> H:
        """Make a queue for this thread."""
        raise NotImplementedError
