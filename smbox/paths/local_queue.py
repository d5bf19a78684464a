"""The local path's half of a thread: its writer, its reader, and its requests in order.

Requests of one thread take effect in the order they were begun: while one waits for a stripe
that another writer holds, those behind it wait too. Whoever waits drives the whole queue, with
the queue's own writer and under its lock, so that any thread may wait for any request.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any

from numpy.typing import NDArray

from smbox.errors import ConfigError, PeerLostError, SmboxError
from smbox.memory.commit import SHORT_NBYTES, StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.locks import LockFile
from smbox.memory.orders import ORDER_DONE
from smbox.memory.reading import Reader
from smbox.paths.local_orders import pack
from smbox.paths.mappings import Mappings
from smbox.paths.threads import NESTED, Half
from smbox.paths.work import Operation, RegionInfo
from smbox.work import Pause, Work


class LocalWork(Work):
    """One request of a queue; subclasses say what a step is.

    Attributes:
        queue: of the thread that begins it.
        is_begun: it was tried, or waits for those before it.
        is_done: it ended, well or not.
        error: what it failed with.
        busy: the stripe that stopped its last step.
    """

    is_begun = False
    is_done = False
    error: SmboxError | None = None
    busy: StripeBusy | None = None
    queue: LocalQueue

    def step(self, queue: LocalQueue) -> None:
        """Go on as far as possible; StripeBusy where that is not the end.

        Called again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return how many bytes are done."""
        return sum(limit - first for first, limit in self.ranges_done())

    def begin(self) -> None:
        """Try it at once, behind those that were begun before."""
        if not self.is_begun and not self.queue.run(self):
            self.queue.rest()

    def outcome(self) -> str:
        """Tell what is known of the effect; a local request never ends in doubt."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def facts(self) -> dict[str, object]:
        """Name the stripe in the way and the process that holds it (0: not known)."""
        busy = self.queue.busy()
        return {} if busy is None else busy.facts()

    def advance(self, deadline_s: float) -> bool:
        """Drive the queue until this request is done; begins it, if need be."""
        if not self.is_done:
            pause = Pause()
            try:
                while not self.queue.run(self):
                    if not pause.sleep(deadline_s):
                        return False
            finally:
                self.queue.rest()
        if self.error is not None:
            self.queue.seen(self.error)
            raise self.error
        return True

    def ended(self) -> None:
        """Give back what is not needed any more; called once, under the queue's lock."""

    def rested(self) -> None:
        """Release what only somebody who waits may keep; called under the queue's lock."""

    def cancel(self) -> None:
        """Leave the queue; what is committed stays."""
        self.queue.drop(self)


class LocalQueue(Half):
    """One thread's writer and its waiting requests.

    Attributes:
        regions: that this process maps.
        locks: an open file for reads and snapshots, which run one after another. It is kept: an
            interrupt as a file is opened leaves it open, and so for good.
        reader: of the thread; needs no memory of the node's.
        writer: of the thread; None before ``make_writer``.
    """

    def __init__(self, regions: Mappings) -> None:
        super().__init__()
        self.regions = regions
        self.locks = LockFile(regions.node.name)
        self.reader = Reader(self.locks)
        self.writer: Writer | None = None
        self._works: deque[LocalWork] = deque()
        self._is_closed = False

    def make_writer(self) -> Writer:
        """Return the thread's writer, made when it first changes something; for ``step`` only.

        Raises:
            OutOfMemoryError: no room for its journal slot.
        """
        writer = self.writer
        if writer is None:
            writer = self.writer = Writer.create(self.regions.node.name)
        return writer

    def commit(self, operation: Operation) -> int | None:
        """Commit a change by one call of the library; None if it is done, else its bytes done.

        What needs more it leaves to a request of the queue: to wait for others, a mapping, a
        writer, siblings, or a copy of the operand.
        """
        me = get_ident()  # before the lock: a signal handler may run after any call
        if self._owner == me and self._lock.locked():
            raise ConfigError(NESTED)
        with self._lock:
            self._owner = me
            left = self._commit(operation)
            self._owner = 0
        return left

    def _commit(self, operation: Operation) -> int | None:
        if self._is_closed:
            raise PeerLostError("the box was closed", outcome="none")
        region, writer = self.regions.mapped(operation.info.address), self.writer
        if region is None or writer is None or self._works:
            return 0
        source = operation.source
        if source.base is not None and region.may_hold(source):
            return 0
        order = writer.order
        nbytes = pack(order, 0, region, operation, operation.first)
        run = writer.short if nbytes <= SHORT_NBYTES else writer.long
        done = run(writer.ref, order.ref, 1)
        return None if done else order.words[ORDER_DONE] - operation.first

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int
    ) -> int | None:
        """Read by one call, as ``commit`` changes."""
        me = get_ident()
        if self._owner == me and self._lock.locked():
            raise ConfigError(NESTED)
        with self._lock:
            self._owner = me
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            region, reader = self.regions.mapped(info.address), self.reader
            left: int | None = 0
            if region is not None and not self._works:
                done = reader.read_once(region, first, limit, out, operand)
                left = None if done else reader.done
            self._owner = 0
        return left

    def run(self, work: LocalWork) -> bool:
        """Append a request, unless it is begun, and run all as far as they go; True if done."""
        me = get_ident()
        if self._owner == me and self._lock.locked():
            raise ConfigError(NESTED)
        with self._lock:
            self._owner = me
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome=work.outcome())
            if not work.is_begun:
                work.is_begun = True
                self._works.append(work)
            if not work.is_done:
                self._run()
            self._owner = 0
        return work.is_done

    def rest(self) -> None:
        """Let others pass until somebody drives the queue again; only the first has begun."""
        if not self._works or self._is_inside():
            return
        with self._entered():
            if self._works:
                self._works[0].rested()

    def _drive_all(self, deadline_s: float) -> bool:
        pause = Pause()
        last = self._works[-1] if self._works else None
        try:
            while last is not None and not self.run(last):
                if not pause.sleep(deadline_s):
                    return False
        finally:
            self.rest()
        return True

    def busy(self) -> StripeBusy | None:
        """Return what stops the first request of the queue."""
        return self._works[0].busy if self._works else None

    def drop(self, work: LocalWork) -> None:
        """Take a request out of the queue."""
        if self._is_inside():
            return  # by a finalizer inside another verb: it is dropped with its owner's
        with self._entered():
            if not work.is_done:
                if work in self._works:
                    work.rested()
                    self._works.remove(work)
                cancelled = ConfigError("the request was interrupted; it is cancelled")
                work.error, work.is_done = cancelled, True

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued."""
        return not self._works

    def close(self) -> None:
        """Remove the writer; a commit of another thread ends first.

        Raises:
            ConfigError: called from a signal handler or finalizer inside a call of this queue.
        """
        with self._entered():
            if not self._is_closed:
                self._is_closed = True
                self._works.clear()
                if self.writer is not None:
                    self.writer.close()
                self.locks.close()

    def abandon(self) -> None:
        """Drop the writer in a forked child: it is the parent's."""
        super().abandon()
        self._is_closed = True
        if self.writer is not None:
            self.writer.abandon()
        self.locks.close()

    def _run(self) -> None:
        while self._works:
            work = self._works[0]
            if not work.is_done:  # else an interrupt came before it could leave
                try:
                    work.step(self)
                except StripeBusy as busy:
                    work.busy = busy
                    return
                except SmboxError as error:
                    work.rested()
                    work.error, work.is_done = error, True  # both, or it is tried again
                work.busy = None
                work.is_done = True
            self._unseen = self._unseen or work.error
            self._works.popleft()
            work.ended()
