"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from smbox.address import OFFSET_MAX
from smbox.errors import RegionFreedError, SmboxError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import RegionHeader, RegionState
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import NoSegmentError
from smbox.paths.base import BatchItem, Bytes, NodeInfo, Operation, RegionInfo, Sink, Work
from smbox.paths.draining import drain_all
from smbox.paths.local_changes import LocalBatch, LocalChange, LocalFrom, step_of
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.local_reads import (
    LocalFailure,
    LocalRead,
    LocalRows,
    LocalSnapshot,
    LocalWait,
)
from smbox.paths.proof import check_not_another, check_still_shared
from smbox.paths.special import Lease, OptimizerStep, RowsWanted

_STATE: Final = RegionHeader.STATE


class LocalPath:
    """DataPath on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        self._node = node
        self._regions: dict[int, MappedRegion] = {}
        self._queues: list[LocalQueue] = []
        self._mutex = threading.RLock()
        self._mine = threading.local()
        self._is_closed = False

    def change(self, info: RegionInfo, operation: Operation, sink: Sink | None) -> Work:
        """Begin a change; see DataPath."""
        queue = self._queue()
        region = self._map_or_error(info)
        if isinstance(region, SmboxError):
            return queue.begin(LocalFailure(queue, region))
        operation = _apart(operation, region)
        return queue.begin(LocalChange(queue, region.alone, operation, sink))

    def read(
        self, info: RegionInfo, first: int, limit: int, out: Bytes, operand: int = 0
    ) -> Work:
        """Begin a read; see DataPath."""
        queue = self._queue()
        region = self._map_or_error(info)
        if isinstance(region, SmboxError):
            return queue.begin(LocalFailure(queue, region))
        return queue.begin(LocalRead(queue, region, first, limit, out, operand))

    def batch(self, items: Sequence[BatchItem]) -> Work:
        """Begin many changes; see DataPath."""
        queue = self._queue()
        apart = [self._apart(item) for item in items]
        regions = [self._map_or_error(item.info) for item in apart]
        return self._begin(queue, lambda: LocalBatch(queue, apart, regions))

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Begin to read rows; see DataPath."""
        queue = self._queue()
        return self._begin(queue, lambda: LocalRows(queue, self._map(info), wanted))

    def change_from(
        self, info: RegionInfo, operation: Operation, source: RegionInfo, source_first: int
    ) -> Work:
        """Begin a change from another region; see DataPath."""
        queue, ahead = self._queue(), source_first - operation.first
        return self._begin(
            queue,
            lambda: LocalFrom(queue, self._map(info), operation, self._map(source), ahead),
        )

    def step(self, info: RegionInfo, step: OptimizerStep) -> Work:
        """Begin a step of an optimizer; see DataPath."""
        queue, infos = self._queue(), (info, *step.siblings)
        return self._begin(
            queue, lambda: step_of(queue, tuple([self._map(each) for each in infos]), step)
        )

    def snapshot(
        self,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        lease: Lease | None,  # noqa: ARG002 - nothing travels
    ) -> Work:
        """Begin to read a range at one moment; see DataPath."""
        queue = self._queue()
        return self._begin(
            queue, lambda: LocalSnapshot(queue, self._map(info), first, limit, out)
        )

    def stages_snapshots(self, first: int, limit: int) -> bool:  # noqa: ARG002 - see DataPath
        """Tell that nothing travels."""
        return False

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:  # noqa: ARG002
        """Return the region's version, at once; RegionFreedError."""
        region = self._map(info)
        region.check_usable()
        return region.version()

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait for a version; see DataPath."""
        return LocalWait(self._map(info), version, lambda: self._is_closed)

    def view(self, info: RegionInfo) -> NDArray[Any] | None:
        """Return the region's memory itself; RegionFreedError."""
        region = self._map(info)
        region.check_usable()
        return region.array()

    def flush(self, deadline_s: float) -> bool:
        """Drive what every thread has queued; see DataPath."""
        with self._mutex:
            queues = list(self._queues)
        return drain_all(queues, deadline_s)

    def close(self) -> None:
        """Remove this process's writers; views of regions stay valid."""
        with self._mutex:
            self._is_closed = True
            queues, self._queues = self._queues, []
            self._regions.clear()
            self._mine = threading.local()
        for queue in queues:
            queue.close()

    def abandon(self) -> None:
        """Drop all in a forked child, where other threads' mutexes may be held for ever."""
        for queue in self._queues:
            queue.abandon()
        self._queues = []
        self._regions = {}
        self._mine = threading.local()

    def _begin(self, queue: LocalQueue, make: Callable[[], LocalWork]) -> Work:
        """Make a request and try it at once; one that cannot be made fails in its turn."""
        try:
            work = make()
        except SmboxError as error:
            work = LocalFailure(queue, error)
        return queue.begin(work)

    def _queue(self) -> LocalQueue:
        try:
            queue: LocalQueue = self._mine.queue
        except AttributeError:
            queue = self._mine.queue = self._new_queue()
        return queue

    def _new_queue(self) -> LocalQueue:
        try:
            queue = LocalQueue(self._node.name)
        except NoSegmentError:
            check_still_shared(self._node)
            raise
        with self._mutex:
            left = [other for other in self._queues if other.is_left()]
            self._queues = [other for other in self._queues if other not in left] + [queue]
        for other in left:
            other.close()
        return queue

    def _apart(self, item: BatchItem) -> BatchItem:
        """Copy an item's operand if an earlier item may change it; see ``_apart``."""
        region = self._regions.get(item.info.address)
        if region is None:
            return item
        return item._replace(operation=_apart(item.operation, region))

    def _map(self, info: RegionInfo) -> MappedRegion:
        region = self._regions.get(info.address)
        if region is None or region.header.item(_STATE) == RegionState.FREED:
            return self._attach(info)
        return region

    def _map_or_error(self, info: RegionInfo) -> MappedRegion | SmboxError:
        try:
            return self._map(info)
        except SmboxError as error:
            return error

    def _attach(self, info: RegionInfo) -> MappedRegion:
        """Map a region, and let go of those that were freed: their memory goes then."""
        with self._mutex:
            freed = [
                address
                for address, region in list(self._regions.items())
                if region.state == RegionState.FREED
            ]
            for address in freed:
                del self._regions[address]
            try:
                region = MappedRegion.attach(self._node.name, info.address & OFFSET_MAX)
            except RegionFreedError:
                check_not_another(self._node)
                raise
            check_still_shared(self._node)
            return self._regions.setdefault(info.address, region)


def _apart(operation: Operation, region: MappedRegion) -> Operation:
    """Copy an operand that lies in the region itself: blocks of it change before their turn."""
    source = operation.source
    if operation.kernel == KernelCode.ELASTIC or not region.may_hold(source):
        return operation
    return operation._replace(source=source.copy())
