"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.memory.segment import NoSegmentError
from smbox.paths.local_changes import LocalBatch, LocalChange, LocalFrom, LocalSignalled
from smbox.paths.local_queue import LocalQueue
from smbox.paths.local_reads import (
    LocalDot,
    LocalRead,
    LocalRows,
    LocalSnapshot,
    LocalWait,
)
from smbox.paths.mappings import Mappings, check_still_shared
from smbox.paths.threads import ThreadedPath
from smbox.paths.work import (
    ByteRange,
    Bytes,
    NodeInfo,
    Operation,
    RegionInfo,
    RowsWanted,
    Sums,
)
from smbox.work import Work


class LocalPath(ThreadedPath[LocalQueue]):
    """The data path on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        super().__init__()
        self._regions = Mappings(node)

    def change(self, operation: Operation) -> Work | None:
        """Do a change at once where nothing is in its way, or describe what is left of it.

        None means that it is done. What is described takes effect once it is begun or waited
        for. A change of no bytes only sees that the region lives.
        """
        queue = self._half()
        done = queue.commit(operation)
        if done is None:
            return None
        if operation.first == operation.limit:
            return self.wait_version(operation.info, 0)
        return LocalChange(queue, operation, done)

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; it takes effect once it is begun or waited for.

        Args:
            operation: the change, without a sink.
            signal: a change of a counter of the same node, which takes effect once all of
                ``operation`` has, and never if that failed or was cancelled before; its
                success is the outcome "all".
        """
        queue = self._half()
        return LocalSignalled(queue, operation, signal=LocalChange(queue, signal))

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work | None:
        """Read bytes ``[first, limit)`` of the data at once, or describe what is left of it.

        None means that it is done. A read of no bytes only sees that the region lives.

        Args:
            info: the region.
            first: byte of its data, at an element.
            limit: byte behind the last.
            out: C-contiguous, as many elements as the range has.
            operand: dtype code of ``out`` where it is narrower than the region's elements.
        """
        queue = self._half()
        done = queue.read(info, first, limit, out, operand)
        if done is None:
            return None
        return LocalRead(queue, info, first, limit, out, operand, done)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes of one stripe each, in order; no transaction."""
        return LocalBatch(self._half(), operations)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows."""
        return LocalRows(self._half(), info, wanted)

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change whose operand is as many bytes of ``source``, read by stripes."""
        return LocalFrom(self._half(), operation, source, source_first)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a read of two ranges of floats that brings only sums of their products.

        Args:
            info: the region.
            span: first byte of its data, and the byte behind the last.
            other: as many bytes of the same dtype; it may be the same region.
            begin: first byte of its data.
            sums: receives ``f64[stripes of the span]``, one sum for each stripe of ``info``.
        """
        return LocalDot(self._half(), info, span, other, begin, sums)

    def snapshot(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work:
        """Describe a read of a range as it was at one moment.

        Args:
            info: the region.
            first: byte of its data.
            limit: byte behind the last.
            out: ``u8[limit - first]``.
        """
        return LocalSnapshot(self._half(), info, first, limit, out)

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:  # noqa: ARG002
        """Return the region's version, at once; RegionFreedError."""
        region = self._regions.region(info)
        region.check_usable()
        return region.version()

    def wait_version(self, info: RegionInfo, version: int) -> LocalWait:
        """Begin to wait until the region's version is at least ``version``."""
        return LocalWait(self._regions.region(info), version, lambda: self._is_closed)

    def view(self, info: RegionInfo, first: int, limit: int) -> Bytes | None:
        """Return bytes ``[first, limit)`` of the region's memory itself; RegionFreedError."""
        region = self._regions.region(info)
        region.check_usable()
        return as_bytes(region.array())[first:limit]

    def close(self) -> None:
        """Remove this process's writers; views of regions stay valid."""
        super().close()
        self._regions.close()

    def abandon(self) -> None:
        """Drop all in a forked child."""
        super().abandon()
        self._regions.abandon()

    def _new_half(self) -> LocalQueue:
        try:
            queue = LocalQueue(self._regions)
        except NoSegmentError:
            check_still_shared(self._regions.node)
            raise
        with self._mutex:
            left = [other for other in self._halves if other.is_left]
            self._halves = [other for other in self._halves if other not in left] + [queue]
        for other in left:
            other.close()
        return queue
