"""Reads and waits on memory that this process maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import Hold
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.work import ByteRange, Bytes, RegionInfo, RowsWanted, Sums
from smbox.wire.ops import cut
from smbox.work import Pause, Work


@dataclass(eq=False)
class LocalRead(LocalWork):
    """What is left of a read; ``out`` holds as many elements, of the operand's type."""

    queue: LocalQueue
    info: RegionInfo
    first: int
    limit: int
    out: NDArray[Any]
    operand: int
    done: int

    def step(self, queue: LocalQueue) -> None:
        """Read what is left."""
        region, reader = queue.regions.region(self.info), queue.reader
        first, limit, operand = self.first, self.limit, self.operand
        reader.done = self.done  # not that of an earlier read
        try:
            reader.read(region, first, limit, self.out, operand, self.done)
        finally:
            self.done = reader.done

    def ranges_done(self) -> list[ByteRange]:
        """List the range read so far."""
        return [(self.first, self.first + self.done)] if self.done else []


@dataclass(eq=False)
class LocalRows(LocalWork):
    """A read of rows, portion by portion."""

    queue: LocalQueue
    info: RegionInfo
    wanted: RowsWanted
    done: int = 0

    def step(self, queue: LocalQueue) -> None:
        """Read the rows that are left."""
        wanted, region = self.wanted, queue.regions.region(self.info)
        while self.done < wanted.places.size:
            limit = wanted.portion_limit(self.done)
            places = wanted.places[self.done : limit]
            rows = np.empty((places.size, wanted.out.shape[1]), np.uint8)
            queue.reader.read_rows(
                region, wanted.first, places, wanted.row_nbytes, rows, operand=wanted.operand
            )
            wanted.fill(self.done, limit, rows)
            self.done = limit


@dataclass(eq=False)
class LocalDot(LocalWork):
    """The sums of products of two ranges, stripe by stripe of the first one."""

    queue: LocalQueue
    info: RegionInfo
    span: ByteRange
    other: RegionInfo
    other_first: int
    sums: Sums
    done: int = 0

    def step(self, queue: LocalQueue) -> None:
        """Sum what is left."""
        region = queue.regions.region(self.info)
        other = queue.regions.region(self.other)
        first, limit = self.span
        for at, end in cut(first + self.done, limit, STRIPE_NBYTES):
            beside = self.other_first + at - first
            found = queue.reader.dot(region, at, other, beside, end - at)
            self.sums[at // STRIPE_NBYTES - first // STRIPE_NBYTES] = found
            self.done = end - first

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is summed."""
        first = self.span[0]
        return [(first, first + self.done)] if self.done else []


@dataclass(eq=False)
class LocalSnapshot(LocalWork):
    """A read of a range at one moment; it holds stripes while somebody waits for it."""

    queue: LocalQueue
    info: RegionInfo
    first: int
    limit: int
    out: Bytes
    hold: Hold | None = None

    def step(self, queue: LocalQueue) -> None:
        """Copy the range once all its stripes are held."""
        if self.hold is None:
            region = queue.regions.region(self.info)
            self.hold = Hold(region, queue.locks, self.first, self.limit)
        self.hold.copy_to(self.out)

    def rested(self) -> None:
        """Release what is held."""
        if self.hold is not None:
            self.hold.release()


@dataclass(eq=False)
class LocalWait(Work):
    """A wait for a region's version; polls, because a local writer tells nobody.

    Args:
        region: mapped.
        version: that is waited for.
        is_closed: tells whether the box was closed.
        found: the version at the last look.
    """

    region: MappedRegion
    version: int
    is_closed: Callable[[], bool]
    found: int = 0

    def advance(self, deadline_s: float) -> bool:
        """Look at the version until it is there.

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
        """Tell how far the region is."""
        return {"version": self.region.version(), "wanted": self.version}
