"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

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
from smbox.paths.threads import ThreadedPath
from smbox.paths.work import (
    ByteRange,
    Bytes,
    Lease,
    Operation,
    RegionInfo,
    RowsWanted,
    Sums,
    Work,
)


class LocalPath(ThreadedPath[LocalQueue]):
    """DataPath on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        super().__init__()
        self._regions = Mappings(node)

    def change(self, operation: Operation) -> Work | None:
        """Do a change, or describe what is left of it; see DataPath."""
        queue = self._half()
        done = queue.commit(operation)
        if done is None:
            return None
        if operation.first == operation.limit:
            return self.wait_version(operation.info, 0)
        return LocalChange(queue, operation, done)

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; see DataPath."""
        queue = self._half()
        return LocalSignalled(queue, operation, signal=LocalChange(queue, signal))

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work | None:
        """Read, or describe what is left to read; see DataPath."""
        queue = self._half()
        done = queue.read(info, first, limit, out, operand)
        if done is None:
            return None
        return LocalRead(queue, info, first, limit, out, operand, done)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes; see DataPath."""
        return LocalBatch(self._half(), operations)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows; see DataPath."""
        return LocalRows(self._half(), info, wanted)

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change from another region; see DataPath."""
        return LocalFrom(self._half(), operation, source, source_first)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a dot product; see DataPath."""
        return LocalDot(self._half(), info, span, other, begin, sums)

    def snapshot(
        self,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        lease: Lease | None,  # noqa: ARG002 - nothing travels
    ) -> Work:
        """Describe a read of a range at one moment; see DataPath."""
        return LocalSnapshot(self._half(), info, first, limit, out)

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

    def close(self) -> None:
        """Remove this process's writers; views of regions stay valid."""
        super().close()
        self._regions.close()

    def abandon(self) -> None:
        """Drop all in a forked child; see DataPath."""
        super().abandon()
        self._regions.abandon()

    def _new_half(self) -> LocalQueue:
        try:
            queue = LocalQueue(self._regions)
        except NoSegmentError:
            check_still_shared(self._regions.node)
            raise
        with self._mutex:
            left = [other for other in self._halves if other.is_left()]
            self._halves = [other for other in self._halves if other not in left] + [queue]
        for other in left:
            other.close()
        return queue
