"""The local path's half of a thread: its writer, its reader, and its requests in order.

Requests of one thread take effect in the order they were begun: while one waits for a stripe
that another writer holds, those behind it wait too. Whoever waits drives the whole queue, with
the queue's own writer and under its lock, so that any thread may wait for any request.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, PeerLostError, SmboxError
from smbox.memory.commit import SHORT_NBYTES, StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode, native_scale
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_DONE, ORDER_NBYTES, Block, address_of, write_order
from smbox.memory.reading import Reader
from smbox.paths.mappings import Mappings
from smbox.paths.readings import PathRequest, Reading
from smbox.paths.threads import QueuedWork, ThreadQueue
from smbox.paths.work import Operation
from smbox.work import Pause

W = TypeVar("W", bound=PathRequest)


class LocalWork(QueuedWork, Generic[W]):
    """One request of a queue, of which ``done`` units are done; subclasses say what a step is.

    Attributes:
        queue: of the thread that begins it.
        request: what it does.
        busy: the stripe that stopped its last step.
    """

    queue: LocalQueue  # type: ignore[mutable-override] # no request changes its queue

    def __init__(self, queue: LocalQueue, request: W, done: int = 0) -> None:
        super().__init__(queue, request.first, request.limit)
        self.at += done
        self.request = request
        self.busy: StripeBusy | None = None

    def step(self) -> None:
        """Go on as far as possible; StripeBusy where that is not the end.

        Called under the queue's lock, and again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return a number that grows with the units done, and with what is before this."""
        return super().progress() + self.at

    def free_resources(self) -> None:
        """Give back what is not needed any more; called once, under the queue's lock."""

    def release_locks(self) -> None:
        """Release what only somebody who waits may keep; called under the queue's lock."""


class LocalQueue(ThreadQueue[LocalWork[Any]]):
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
        self._works: deque[LocalWork[Any]] = deque()
        self._is_closed = False

    def make_writer(self) -> Writer:
        """Return the thread's writer, made when it first changes something; for ``step`` only.

        Raises:
            OutOfMemoryError: no room for its journal slot.
        """
        if self.writer is None:
            self.writer = Writer.create(self.regions.node.name)
        return self.writer

    def commit(self, operation: Operation) -> int | None:
        """Commit a change by one call of the library; None if it is done, else its bytes done.

        What needs more it leaves to a request of the queue: to wait for others, a mapping, a
        writer, siblings, or a copy of the operand.
        """
        with self._entered():
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            region, writer = self.regions.mapped(operation.info.address), self.writer
            if region is None or writer is None or self._works:
                return 0
            source, first = operation.source, operation.first
            if source.base is not None and region.may_hold(source):
                return 0
            order = writer.order
            nbytes = pack(order, 0, region, operation, first)
            run = writer.short if nbytes <= SHORT_NBYTES else writer.long
            return None if run(writer.ref, order.ref, 1) else order.words[ORDER_DONE] - first

    def read(self, reading: Reading) -> int | None:
        """Read by one call, as ``commit`` changes."""
        with self._entered():
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            region, reader = self.regions.mapped(reading.info.address), self.reader
            if region is None or self._works:
                return 0
            first, limit, out = reading.first, reading.limit, reading.out
            is_done = reader.read_once(region, first, limit, out, reading.operand)
            return None if is_done else reader.done

    def begin(self, work: LocalWork[Any]) -> None:
        """Try a request at once, behind those that were begun before."""
        if not self._run(work):
            self._release_locks()

    def drive(self, work: LocalWork[Any], deadline_s: float) -> bool:
        """Run the queue until a request, begun or not, is done; False at the deadline."""
        pause = Pause()
        try:
            while not self._run(work):
                if not pause.sleep(deadline_s):
                    return False
        finally:
            self._release_locks()
        return True

    def cancel(self, work: LocalWork[Any]) -> None:
        """Take a request out of the queue."""
        if self._is_inside():
            return  # by a finalizer inside another verb: it is dropped with its owner's
        with self._entered():
            if not work.is_done:
                if work in self._works:
                    work.release_locks()
                    self._works.remove(work)
                cancelled = ConfigError("the request was interrupted; it is cancelled")
                work.error, work.is_done = cancelled, True
            work.is_cancelled = True

    def facts(self) -> dict[str, object]:
        """Name the stripe in the way and the process that holds it (0: not known)."""
        busy = self._works[0].busy if self._works else None
        return {} if busy is None else busy.facts()

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

    def _drive_all(self, deadline_s: float) -> bool:
        return not self._works or self.drive(self._works[-1], deadline_s)

    def _run(self, work: LocalWork[Any]) -> bool:
        """Append a request, unless it is begun, and run all as far as they go; True if done."""
        with self._entered():
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome=work.outcome())
            if not work.is_begun:
                work.is_begun = True
                self._works.append(work)
            while self._works and self._step(self._works[0]):
                pass
        return work.is_done

    def _step(self, work: LocalWork[Any]) -> bool:
        """Move the first request; False where something is in its way."""
        if not work.is_done:  # else an interrupt came before it could leave
            try:
                work.step()
            except StripeBusy as busy:
                work.busy = busy
                return False
            except SmboxError as error:
                work.release_locks()
                work.error, work.is_done = error, True  # both, or it is tried again
            work.busy = None
            work.is_done = True
        self._unreported = self._unreported or work.error
        self.completed += 1
        self._works.popleft()
        work.free_resources()
        return True

    def _release_locks(self) -> None:
        """Let others pass until somebody drives the queue again; only the first has begun."""
        if not self._works or self._is_inside():
            return
        with self._entered():
            if self._works:
                self._works[0].release_locks()


def pack(
    block: Block,
    place: int,
    region: MappedRegion,
    operation: Operation,
    at: int,
    extents: bytes = b"",
    parameters: NDArray[np.float64] | None = None,
) -> int:
    """Write an operation, kept as long as it may run, as an order; return its range's bytes.

    Args:
        block: of at least ``place + 1`` orders.
        place: index of the order.
        region: that is changed.
        operation: what is done.
        at: byte from which on it is still to be done.
        extents: the region and its siblings; empty: it has none.
        parameters: an optimizer's, ``f64[4]``.
    """
    scale, sink, source, first = (
        operation.scale,
        operation.sink,
        operation.source,
        operation.first,
    )
    limit = operation.limit
    if scale == 1:
        scale = region.unit_scale
    elif type(scale) is not float or type(region.unit_scale) is int:  # C rounds floats
        scale = native_scale(KernelCode(operation.kernel), region.spec.dtype, scale)
    address = address_of(source)
    write_order[type(scale)](
        block.bytes,
        place * ORDER_NBYTES,
        operation.kernel,
        operation.operand or region.dtype_code,
        0 if sink is None else sink.back,
        extents or region.extents,
        first,
        limit,
        address,
        source.nbytes,
        scale,
        0 if parameters is None else address_of(parameters),
        0 if sink is None else sink.address(first, address),
        0,
        0,
        at,
    )
    return limit - first
