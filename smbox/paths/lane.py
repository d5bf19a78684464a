"""The local path's half of a thread: its writer, and its requests that could not end at once.

Requests of one thread take effect in the order they were begun: while one waits for a stripe
that another writer holds, those behind it wait too. Whoever waits drives the whole lane, with
the lane's own writer and under its mutex, so that any thread may wait for any request.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from typing import Final

from smbox.errors import ConfigError, PeerLostError, SmboxError
from smbox.memory.busy import StripeBusy
from smbox.memory.journal import Writer
from smbox.paths.base import ByteRange
from smbox.paths.reentry import check_not_mine, is_mine

PAUSE_FIRST_S: Final = 20e-6
PAUSE_MAX_S: Final = 1e-3


class Pause:
    """Sleeps that grow from 20 us to 1 ms: between two looks at what is not ready yet."""

    def __init__(self) -> None:
        self._next_s = PAUSE_FIRST_S

    def sleep(self, deadline_s: float) -> bool:
        """Sleep once, not beyond the deadline; False, at once, if that has passed."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(self._next_s, left_s))
        self._next_s = min(2 * self._next_s, PAUSE_MAX_S)
        return True


class LaneWork:
    """One request of a lane; subclasses say what a step is.

    Attributes:
        is_done: it ended, well or not.
        has_owner: somebody may wait for it; without one, nothing more of it is begun.
        error: what it failed with.
        busy: the stripe that stopped its last step.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.is_done = False
        self.has_owner = True
        self.error: SmboxError | None = None
        self.busy: StripeBusy | None = None

    def step(self, writer: Writer) -> None:
        """Go on as far as possible; StripeBusy where that is not the end.

        Called again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges that are done."""
        raise NotImplementedError

    def progress(self) -> int:
        """Return how many bytes are done."""
        return sum(limit - first for first, limit in self.ranges_done())

    def let_go(self) -> None:
        """Nothing to do: arrays are used inside ``advance`` only."""

    def outcome(self) -> str:
        """Tell what is known of the effect; a local request never ends in doubt."""
        return "partial" if self.ranges_done() else "not-sent"

    def facts(self) -> dict[str, object]:
        """Name the stripe in the way and the process that holds it (0: not known)."""
        busy = self._lane.busy()
        if busy is None:
            return {}
        return {
            "region": busy.region.spec.name,
            "stripe": busy.stripe,
            "holder_pid": busy.holder_pid(),
        }

    def advance(self, deadline_s: float) -> bool:
        """Drive the lane until this request is done."""
        pause = Pause()
        try:
            while not self._lane.run(self):
                if not pause.sleep(deadline_s):
                    return False
        finally:
            self._lane.rest()
        if self.error is not None:
            self._lane.seen(self)
            raise self.error
        return True

    def rested(self) -> None:
        """Let go of what only somebody who waits may keep; called under the lane's mutex."""

    def dropped(self) -> None:
        """Let go of what was kept between steps; called under the lane's mutex."""

    def cancel(self) -> None:
        """Leave the lane; what is committed stays."""
        self._lane.drop(self)


class Lane:
    """One thread's writer and its waiting requests.

    Attributes:
        writer: belongs to who holds ``mutex``.
        queue: requests in line; only the lane's own thread adds to it.
        is_closed: the writer is gone.

    Args:
        node: name of the memory node.
    """

    def __init__(self, node: str) -> None:
        self.thread = threading.current_thread()
        self.writer = Writer.create(node)
        self.queue: deque[LaneWork] = deque()
        self.mutex = threading.RLock()
        self._unseen: LaneWork | None = None
        self.is_closed = False
        self._closes_late = False

    def begin(self, work: LaneWork) -> None:
        """Put a request in line and try it at once.

        One that an exception takes from its caller is not gone on with.
        """
        check_not_mine(self.mutex)
        try:
            with self.mutex:
                self._check_open(work)
                work.has_owner = False
                self.queue.append(work)
                self._run(work)
                work.has_owner = True
        finally:
            self.rest()

    def run(self, work: LaneWork) -> bool:
        """Run the requests in line as far as they go; True if ``work`` is done."""
        check_not_mine(self.mutex)
        with self.mutex:
            if not work.is_done:
                self._check_open(work)
                self._run(None)
        return work.is_done

    def _check_open(self, work: LaneWork) -> None:
        if self.is_closed:
            raise PeerLostError("the box was closed", outcome=work.outcome())

    def _run(self, beginning: LaneWork | None) -> None:
        while self.queue:
            if not self._run_first(self.queue[0], beginning):
                break
            self.queue.popleft()

    def _run_first(self, work: LaneWork, beginning: LaneWork | None) -> bool:
        if not work.has_owner and work is not beginning:
            self._end_dropped(work)
            return True
        try:
            self.writer.settle()
            work.step(self.writer)
        except StripeBusy as busy:
            work.busy = busy
            return False
        except SmboxError as error:
            work.error = error
            self._unseen = self._unseen or work
        work.busy = None
        work.is_done = True
        return True

    def rest(self) -> None:
        """Let others pass until somebody drives the lane again.

        Only the first in line has begun. From a signal handler inside a step, that goes on.
        """
        if self.queue and not is_mine(self.mutex):
            with self.mutex:
                if self.queue and not self.is_closed:
                    self.queue[0].rested()

    def drain(self, deadline_s: float) -> bool:
        """Drive all that is in line now; False at the deadline.

        Raises:
            SmboxError: the first failure that nobody has been told of.
        """
        pause = Pause()
        last = self.queue[-1] if self.queue else None
        try:
            while last is not None and not self.run(last):
                if not pause.sleep(deadline_s):
                    return False
        finally:
            self.rest()
        unseen, self._unseen = self._unseen, None
        if unseen is not None and unseen.error is not None:
            raise unseen.error
        return True

    def busy(self) -> StripeBusy | None:
        """Return what stops the first request in line."""
        return self.queue[0].busy if self.queue else None

    def seen(self, work: LaneWork) -> None:
        """Note that somebody was told how ``work`` failed."""
        if self._unseen is work:
            self._unseen = None

    def drop(self, work: LaneWork) -> None:
        """Take a request out of the line."""
        check_not_mine(self.mutex)
        with self.mutex:
            if work in self.queue:
                work.has_owner = False
                self._end_dropped(work)  # cut off, whoever drives the lane next does it again
                self.queue.remove(work)

    def _end_dropped(self, work: LaneWork) -> None:
        work.error = ConfigError("the request was interrupted; it is cancelled")
        try:
            self.writer.settle()
            work.dropped()
        except SmboxError as error:  # it would stand in the way of all behind it
            work.error = error
        work.is_done = True

    def is_left(self) -> bool:
        """Tell whether the thread has ended with nothing in line."""
        return not self.thread.is_alive() and not self.queue

    def close(self) -> None:
        """Remove the writer; a commit of another thread ends first.

        From a signal handler inside a commit, the writer stays until the process exits: what
        ends or undoes that commit needs it.
        """
        if is_mine(self.mutex):
            self.is_closed = self._closes_late = True
            atexit.register(self.close)
            return
        with self.mutex:
            self.writer.settle()  # while a cut off close can still be called again
            if self._closes_late or not self.is_closed:
                self.is_closed, self._closes_late = True, False
                self.queue.clear()
                self.writer.close()

    def abandon(self) -> None:
        """Drop the writer in a forked child: it is the parent's, and so may be the mutex."""
        self.mutex = threading.RLock()
        self.is_closed, self._closes_late = True, False
        self.writer.abandon()
