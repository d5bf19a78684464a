"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from smbox.memory.segment import NoSegmentError
from smbox.paths.base import NodeInfo
from smbox.paths.local_changes import LocalBatch, LocalChange, LocalFrom, LocalSignalled
from smbox.paths.local_queue import LocalQueue
from smbox.paths.local_reads import (
    LocalDot,
    LocalRead,
    LocalRows,
    LocalSnapshot,
    LocalWait,
)
from smbox.paths.mappings import Mappings
from smbox.paths.proof import check_still_shared
from smbox.paths.work import (
    ByteRange,
    Bytes,
    Lease,
    Operation,
    RegionInfo,
    RowsWanted,
    Sums,
    Work,
    drain_all,
)


class LocalPath:
    """DataPath on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        self._regions = Mappings(node)
        self._queues: list[LocalQueue] = []
        self._mutex = threading.RLock()
        self._mine = threading.local()
        self._is_closed = False

    def change(self, operation: Operation) -> Work | None:
        """Do a change, or describe what is left of it; see DataPath."""
        queue = self._queue()
        done = queue.commit(operation)
        if done is None:
            return None
        if operation.first == operation.limit:
            return self.wait_version(operation.info, 0)
        return LocalChange(queue, operation, done)

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; see DataPath."""
        queue = self._queue()
        return LocalSignalled(queue, operation, signal=LocalChange(queue, signal))

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work | None:
        """Read, or describe what is left to read; see DataPath."""
        queue = self._queue()
        done = queue.read(info, first, limit, out, operand)
        if done is None:
            return None
        return LocalRead(queue, info, first, limit, out, operand, done)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes; see DataPath."""
        return LocalBatch(self._queue(), operations)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows; see DataPath."""
        return LocalRows(self._queue(), info, wanted)

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change from another region; see DataPath."""
        return LocalFrom(self._queue(), operation, source, source_first)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a dot product; see DataPath."""
        return LocalDot(self._queue(), info, span, other, begin, sums)

    def snapshot(
        self,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        lease: Lease | None,  # noqa: ARG002 - nothing travels
    ) -> Work:
        """Describe a read of a range at one moment; see DataPath."""
        return LocalSnapshot(self._queue(), info, first, limit, out)

    def stages_snapshots(self, first: int, limit: int) -> bool:  # noqa: ARG002 - see DataPath
        """Tell that nothing travels."""
        return False

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:  # noqa: ARG002
        """Return the region's version, at once; RegionFreedError."""
        region = self._regions.region(info)
        region.check_usable()
        return region.version()

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait for a version; see DataPath."""
        return LocalWait(self._regions.region(info), version, lambda: self._is_closed)

    def view(self, info: RegionInfo) -> NDArray[Any] | None:
        """Return the region's memory itself; RegionFreedError."""
        region = self._regions.region(info)
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
            self._mine = threading.local()
        for queue in queues:
            queue.close()
        self._regions.close()

    def abandon(self) -> None:
        """Drop all in a forked child, where other threads' mutexes may be held for ever."""
        for queue in self._queues:
            queue.abandon()
        self._queues = []
        self._regions.abandon()
        self._mine = threading.local()

    def _queue(self) -> LocalQueue:
        try:
            queue: LocalQueue = self._mine.queue
        except AttributeError:
            queue = self._mine.queue = self._new_queue()
        return queue

    def _new_queue(self) -> LocalQueue:
        try:
            queue = LocalQueue(self._regions)
        except NoSegmentError:
            check_still_shared(self._regions.node)
            raise
        with self._mutex:
            left = [other for other in self._queues if other.is_left()]
            self._queues = [other for other in self._queues if other not in left] + [queue]
        for other in left:
            other.close()
        return queue
