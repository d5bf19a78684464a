"""Reads and waits on memory that this process maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from smbox.errors import PeerLostError
from smbox.memory.hold import Hold, held_stripes, read_held
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion, pieces
from smbox.paths.local_queue import LocalQueue
from smbox.paths.local_work import LocalWork
from smbox.paths.pause import Pause
from smbox.paths.work import ByteRange, Bytes, RegionInfo, RowsWanted, Sums, Work


class LocalRead(LocalWork):
    """What is left of a read; ``out`` holds as many elements, of the operand's type."""

    def __init__(
        self,
        queue: LocalQueue,
        info: RegionInfo,
        first: int,
        limit: int,
        out: NDArray[Any],
        operand: int,
        done: int,
    ) -> None:
        self._queue = queue
        self._info = info
        self._first = first
        self._limit = limit
        self._out = out
        self._operand = operand
        self._done = done

    def step(self, queue: LocalQueue) -> None:
        """Read what is left."""
        region, reader = queue.regions.region(self._info), queue.reader
        first, limit, operand = self._first, self._limit, self._operand
        reader.done = self._done  # not that of an earlier read
        try:
            reader.read(region, first, limit, self._out, operand, self._done)
        finally:
            self._done = reader.done

    def ranges_done(self) -> list[ByteRange]:
        """List the range read so far."""
        return [(self._first, self._first + self._done)] if self._done else []


class LocalRows(LocalWork):
    """A read of rows."""

    _done = 0

    def __init__(self, queue: LocalQueue, info: RegionInfo, wanted: RowsWanted) -> None:
        self._queue = queue
        self._info = info
        self._wanted = wanted

    def step(self, queue: LocalQueue) -> None:
        """Read the rows that are left."""
        wanted, reader = self._wanted, queue.reader
        region, out = queue.regions.region(self._info), wanted.out.reshape(-1)
        reader.done = self._done  # not that of an earlier read
        try:
            reader.read_rows(
                region, wanted.first, wanted.places, wanted.row_nbytes, out, done=self._done
            )
        finally:
            self._done = reader.done


class LocalDot(LocalWork):
    """The sums of products of two ranges, stripe by stripe of the first one."""

    def __init__(
        self,
        queue: LocalQueue,
        info: RegionInfo,
        span: ByteRange,
        other: RegionInfo,
        begin: int,
        sums: Sums,
    ) -> None:
        self._queue = queue
        self._info = info
        self._span = span
        self._other = other
        self._ahead = begin - span[0]
        self._sums = sums
        self._at = span[0]

    def step(self, queue: LocalQueue) -> None:
        """Sum what is left."""
        region = queue.regions.region(self._info)
        other = queue.regions.region(self._other)
        before = self._span[0] // STRIPE_NBYTES
        for stripe, first, limit in pieces(self._at, self._span[1]):
            found = queue.reader.dot(region, first, other, first + self._ahead, limit - first)
            self._sums[stripe - before] = found
            self._at = limit

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is summed."""
        return [(self._span[0], self._at)] if self._at > self._span[0] else []


class LocalSnapshot(LocalWork):
    """A read of a range at one moment; it holds stripes while somebody waits for it."""

    _hold: Hold | None = None

    def __init__(
        self, queue: LocalQueue, info: RegionInfo, first: int, limit: int, out: Bytes
    ) -> None:
        self._queue = queue
        self._info = info
        self._first = first
        self._limit = limit
        self._out = out

    def step(self, queue: LocalQueue) -> None:
        """Copy the range once all its stripes are held."""
        region, first, limit = queue.regions.region(self._info), self._first, self._limit
        if self._hold is None:
            # An open file of its own: the thread's other requests would pass through its locks.
            locks = LockFile(region.node)
            self._hold = Hold(region, locks, held_stripes(region, first, limit))
        read_held(region, self._hold, first, limit, self._out)

    def rested(self) -> None:
        """Release what is held."""
        if self._hold is not None:
            self._hold.release()


class LocalWait(Work):
    """A wait for a region's version; polls, because a local writer tells nobody.

    Args:
        region: mapped.
        version: that is waited for.
        is_closed: tells whether the box was closed.
    """

    def __init__(
        self, region: MappedRegion, version: int, is_closed: Callable[[], bool]
    ) -> None:
        self._region = region
        self._version = version
        self._is_closed = is_closed

    def advance(self, deadline_s: float) -> bool:
        """Look at the version until it is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
            PeerLostError: the box was closed meanwhile.
        """
        pause = Pause()
        while True:
            if self._is_closed():
                raise PeerLostError("the box was closed", outcome="none")
            self._region.check_usable()
            if self._region.version() >= self._version:
                return True
            if not pause.sleep(deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Tell how far the region is."""
        return {"version": self._region.version(), "wanted": self._version}
