"""The data path of a client that maps the memory: reads, snapshots, waits, and `LocalPath`.

No byte of a region's data passes through the node, and no message is sent. Each thread commits
with its own writer; all threads share the mapped regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from smbox.array import as_bytes
from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import RangeLock
from smbox.memory.segment import NoSegmentError
from smbox.paths import requests
from smbox.paths.local_changes import LocalChanges, LocalFrom
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.mappings import Mappings, check_still_shared
from smbox.paths.requests import Operation, Reading  # looked up in every call
from smbox.paths.sinks import Bytes
from smbox.paths.threads import ThreadedPath
from smbox.wire.ops import cut
from smbox.work import Pause, Work


class LocalRead(LocalWork[Reading]):
    """A read of a range."""

    def step(self) -> None:
        """Read what is left."""
        request, reader, first = self.request, self.queue.reader, self.first
        region = self.queue.regions.region(request.info)
        reader.done = self.at - first  # the thread's reader still holds that of an earlier read
        try:
            reader.read(region, first, self.limit, request.out, request.operand, reader.done)
        finally:
            self.at = first + reader.done


class LocalRows(LocalWork[requests.RowsReading]):
    """A read of rows, one portion at a time."""

    has_ranges = False

    def step(self) -> None:
        """Read the rows that are left."""
        request, queue = self.request, self.queue
        region = queue.regions.region(request.info)
        while self.at < self.limit:
            limit = request.portion_limit(self.at)
            places = request.places[self.at : limit]
            rows = np.empty((places.size, request.out.shape[1]), np.uint8)
            queue.reader.read_rows(
                region, request.begin, places, request.row_nbytes, rows, operand=request.operand
            )
            request.fill(self.at, limit, rows)
            self.at = limit


class LocalDot(LocalWork[requests.Product]):
    """Sums of products of two ranges, one for each stripe of the first range."""

    def step(self) -> None:
        """Compute the sums that are left."""
        request, queue = self.request, self.queue
        region = queue.regions.region(request.info)
        other = queue.regions.region(request.other)
        first, offset = self.first, request.other_first - self.first
        for at, end in cut(self.at, self.limit, STRIPE_NBYTES):
            found = queue.reader.dot(region, at, other, at + offset, end - at)
            request.sums[at // STRIPE_NBYTES - first // STRIPE_NBYTES] = found
            self.at = end


class LocalSnapshot(LocalWork[requests.Snapshot]):
    """A read of a range at one moment; it holds stripe locks only while a caller waits."""

    _range_lock: RangeLock | None = None

    def step(self) -> None:
        """Lock all stripes of the range, then copy it."""
        if self._range_lock is None:
            region = self.queue.regions.region(self.request.info)
            self._range_lock = RangeLock(region, self.queue.locks, self.first, self.limit)
        self._range_lock.copy_to(as_bytes(self.request.out))

    def release_locks(self) -> None:
        """Release the stripes."""
        if self._range_lock is not None:
            self._range_lock.release()


@dataclass(eq=False)
class LocalWait(Work):
    """A wait for a region's version, which polls: local writers send no notification.

    Args:
        region: mapped.
        version: to wait for.
        is_closed: returns True once the box is closed.
        found: the version read last.
    """

    region: MappedRegion
    version: int
    is_closed: Callable[[], bool]
    found: int = 0

    def advance(self, deadline_s: float) -> bool:
        """Poll until the region has the version.

        Raises:
            RegionFreedError: the region was freed meanwhile.
            PeerLostError: the box was closed meanwhile.
        """
        pause = Pause()
        while True:
            if self.is_closed():
                raise PeerLostError("the box was closed", outcome="none")
            self.region.check_usable()
            self.found = self.region.version()
            if self.found >= self.version:
                return True
            if not pause.sleep(deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Return the current version and the one that is waited for."""
        return {"version": self.region.version(), "wanted": self.version}


_WORKS: Final[dict[type, Callable[..., LocalWork[Any]]]] = {
    Operation: LocalChanges,
    requests.Signalled: LocalChanges,
    requests.Copying: LocalFrom,
    requests.Changes: LocalChanges,
    Reading: LocalRead,
    requests.Snapshot: LocalSnapshot,
    requests.RowsReading: LocalRows,
    requests.Product: LocalDot,
}


class LocalPath(ThreadedPath[LocalQueue]):
    """The data path on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: the owner of the memory that this process maps.
    """

    transport = "shm"

    def __init__(self, node: requests.NodeInfo) -> None:
        super().__init__()
        self._regions = Mappings(node)

    def start(self, request: requests.PathRequest) -> Work | None:
        """Do a change or a read at once, if no lock or queued request delays it.

        Without bytes or rows it only checks that the region was not freed.

        Returns:
            None if it is done, else a request that takes effect once it is begun or waited for.
        """
        queue = self._queue()
        done: int | None = 0
        if type(request) is Operation or type(request) is Reading:
            done = queue.run_once(request)
            if done is None:
                return None
        if request.first == request.limit and request.info is not None:
            return self.wait_version(request.info, 0)
        return _WORKS[type(request)](queue, request, done)

    def version(self, info: requests.RegionInfo, timeout_s: float) -> int:  # noqa: ARG002
        """Return the region's version, at once; RegionFreedError."""
        return self._regions.region(info).version()

    def wait_version(self, info: requests.RegionInfo, version: int) -> LocalWait:
        """Return a wait until the region's version is at least ``version``."""
        return LocalWait(self._regions.region(info), version, lambda: self._is_closed)

    def view(self, info: requests.RegionInfo, first: int, limit: int) -> Bytes | None:
        """Return bytes ``[first, limit)`` of the region's memory itself; RegionFreedError."""
        return self._regions.region(info).data[first:limit]

    def close(self) -> None:
        """Remove this process's writers; views of regions stay valid."""
        super().close()
        self._regions.close()

    def _open_queue(self) -> LocalQueue:
        try:
            return LocalQueue(self._regions)
        except NoSegmentError:
            check_still_shared(self._regions.node)
            raise
