"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from smbox.array import as_bytes
from smbox.memory.segment import NoSegmentError
from smbox.paths.local_changes import LocalBatch, LocalChange, LocalFrom, LocalSignalled
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.local_reads import LocalDot, LocalRead, LocalRows, LocalSnapshot, LocalWait
from smbox.paths.mappings import Mappings, check_still_shared
from smbox.paths.readings import Product, Reading, RowsReading, Snapshot, Wanted
from smbox.paths.sinks import Bytes
from smbox.paths.threads import ThreadedPath
from smbox.paths.work import Changes, Copying, NodeInfo, Operation, RegionInfo, Signalled
from smbox.work import Work

_WORKS: Final[dict[type, Callable[..., LocalWork[Any]]]] = {
    Operation: LocalChange,
    Signalled: LocalSignalled,
    Copying: LocalFrom,
    Changes: LocalBatch,
    Reading: LocalRead,
    Snapshot: LocalSnapshot,
    RowsReading: LocalRows,
    Product: LocalDot,
}


class LocalPath(ThreadedPath[LocalQueue]):
    """The data path on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        super().__init__()
        self._regions = Mappings(node)

    def start(self, wanted: Wanted) -> Work | None:
        """Do a change or a read at once where nothing is in its way, else describe it.

        None means that it is done. What is described takes effect once it is begun or waited
        for. What has no bytes or rows only sees that the region lives.
        """
        queue = self._half()
        done: int | None = 0
        if type(wanted) is Reading:
            done = queue.read(wanted)
        elif type(wanted) is Operation:
            done = queue.commit(wanted)
        if done is None:
            return None
        if wanted.first == wanted.limit and wanted.info is not None:
            return self.wait_version(wanted.info, 0)
        return _WORKS[type(wanted)](queue, wanted, done)

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
