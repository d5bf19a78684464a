"""The queue of a thread on mapped memory: its writer, its reader, and its requests in order.

The requests of a thread take effect in the order in which they were begun: while one waits for
a stripe that another writer holds, those behind it wait too. Any thread may wait for any
request: it runs the whole queue, under the queue's lock and with the queue's own writer.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np

from smbox.errors import ConfigError, PeerLostError, SmboxError
from smbox.memory.commit import SHORT_NBYTES, StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import (
    ORDER_DONE,
    ORDER_NBYTES,
    Block,
    address_of,
    write_order,
)
from smbox.memory.reading import Reader
from smbox.paths.mappings import Mappings
from smbox.paths.requests import Operation, PathRequest, Reading
from smbox.paths.threads import QueuedWork, ThreadQueue
from smbox.work import NESTED, NestedCallError, exclusive

W = TypeVar("W", bound=PathRequest)


class LocalWork(QueuedWork, Generic[W]):
    """A request in a local queue; subclasses implement ``step``.

    Attributes:
        request: what is done.
        busy: the locked stripe that stopped the last step.

    Args:
        queue: of the thread that begins the request.
        request: as the attribute.
        done: number of units that are done already.
    """

    queue: LocalQueue  # type: ignore[mutable-override] # no request changes its queue

    def __init__(self, queue: LocalQueue, request: W, done: int = 0) -> None:
        super().__init__(queue, request.first, request.limit)
        self.at += done
        self.request = request
        self.busy: StripeBusy | None = None

    def step(self) -> None:
        """Do as much as possible; raise StripeBusy if a locked stripe prevents the rest.

        Called under the queue's lock, and again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return a number that grows with the units done, here and in requests before this."""
        return super().progress() + self.at

    def release_locks(self) -> None:
        """Release stripes that are held only while a caller waits; called under the lock."""


class LocalQueue(ThreadQueue[LocalWork[Any]]):
    """One thread's writer, reader and waiting requests.

    Attributes:
        regions: that this process maps.
        locks: the open lock file for reads and snapshots, which run one after another. It stays
            open: an interrupt during an open would leak the file.
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
        """Return the thread's writer; the first change makes it. For ``step`` only.

        Raises:
            OutOfMemoryError: no room for its journal slot.
        """
        if self.writer is None:
            self.writer = Writer.create(self.regions.node.name)
        return self.writer

    def run_once(self, request: Operation | Reading) -> int | None:
        """Do a change or a read by one call of the library, without a request object.

        Returns:
            None if it is done, else the number of bytes done. The rest needs a request in the
            queue: to wait for locks, or for a mapping, a writer or a copy of the operand.
        """
        with self._lock:  # what ``exclusive`` does, without its call
            if self._busy.locked():
                raise NestedCallError(NESTED)
            with self._busy:
                if self._is_closed:
                    raise PeerLostError("the box was closed", outcome="none")
                region = self.regions.mapped(request.info.address)
                if region is None or self._works:
                    return 0
                first = request.first
                if isinstance(request, Reading):
                    reader = self.reader
                    out, operand = request.out, request.operand
                    is_done = reader.read_once(region, first, request.limit, out, operand)
                    return None if is_done else reader.done
                writer, source, sink = self.writer, request.source, request.sink
                if writer is None:
                    return 0
                data = region.data  # only a view can lie in it
                if source.base is not None and np.may_share_memory(source, data):
                    return 0
                if sink is not None and sink.is_given and np.may_share_memory(sink.out, data):
                    return 0
                order = writer.order
                nbytes = pack(order, 0, region, request, first)
                run = writer.short if nbytes <= SHORT_NBYTES else writer.long
                is_done = run(writer.ref, order.ref, 1)
                return None if is_done else order.words[ORDER_DONE] - first

    def cancel(self, work: LocalWork[Any]) -> None:
        """Take a request out of the queue."""
        with suppress(NestedCallError):  # from a finalizer inside a call: it stays queued
            self._cancel(work)

    @exclusive
    def _cancel(self, work: LocalWork[Any]) -> None:
        if not work.is_done and work in self._works:
            work.release_locks()
            self._works.remove(work)
        work.is_cancelled = True
        work.fail(ConfigError("the request was interrupted; it is cancelled"))

    def facts(self) -> dict[str, object]:
        """Return the locked stripe and the pid of its holder (0: not known)."""
        busy = self._works[0].busy if self._works else None
        return {} if busy is None else busy.facts()

    @property
    def is_idle(self) -> bool:
        """Return True if nothing is queued."""
        return not self._works

    @exclusive
    def close(self) -> None:
        """Fail all requests and remove the writer, once a commit in another thread has ended.

        Raises:
            ConfigError: called from a signal handler or finalizer inside a call of this queue.
        """
        self._is_closed = True
        for work in self._works:
            work.fail(PeerLostError("the box was closed", outcome=work.outcome()))
        self._works.clear()
        if self.writer is not None:
            self.writer.close()
        self.locks.close()

    def abandon(self) -> None:
        """End in a forked child: the slot is the parent's; LockFile has closed the files."""
        self._is_closed = True

    def _pending(self) -> list[LocalWork[Any]]:
        return [work for work in [*self._works] if work.is_change]

    @exclusive
    def _run(self, work: LocalWork[Any], _deadline_s: float | None) -> bool:
        if work.is_done:  # perhaps another thread has closed the queue since
            return True
        if self._is_closed:
            raise PeerLostError("the box was closed", outcome=work.outcome())
        if not work.is_begun:
            work.is_begun = True
            self._works.append(work)
        while self._works and self._step(self._works[0]):
            pass
        return work.is_done

    def _step(self, work: LocalWork[Any]) -> bool:
        """Run the first request; return False if a locked stripe stops it."""
        if not work.is_done:  # True: an interrupt came before it was removed
            try:
                work.step()
            except StripeBusy as busy:
                work.busy = busy
                return False
            except SmboxError as error:
                work.release_locks()
                work.fail(error)
            work.busy = None
            work.is_done = True
        self.completed += 1
        self._works.popleft()
        return True

    def _release_locks(self) -> None:
        if self._works:  # only the first of them has begun
            with suppress(NestedCallError):
                self._release_first()

    @exclusive
    def _release_first(self) -> None:
        if self._works:
            self._works[0].release_locks()


def pack(
    block: Block,
    place: int,
    region: MappedRegion,
    operation: Operation,
    at: int,
    extents: bytes = b"",
) -> int:
    """Write an operation as an order; return the bytes of its range.

    The operation must be kept as long as the order may run.

    Args:
        block: of at least ``place + 1`` orders.
        place: index of the order.
        region: that is changed.
        operation: what is done.
        at: first byte that is not done yet.
        extents: the region and its state regions; empty: the region alone.
    """
    sink, source, parameters = operation.sink, operation.source, operation.parameters
    first, limit = operation.first, operation.limit
    address = address_of(source)
    write_order(
        block.bytes,
        place * ORDER_NBYTES,
        operation.kernel,
        operation.operand or region.dtype_code,
        0 if sink is None else sink.output,
        extents or region.extents,
        first,
        limit,
        address,
        source.nbytes,
        operation.scale,
        0 if parameters is None else address_of(parameters),
        0 if sink is None else sink.address(first, address),
        0,
        0,
        at,
    )
    return limit - first
