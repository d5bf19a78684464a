"""Reads and waits on memory that this process maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import Hold
from smbox.paths.local_queue import LocalWork
from smbox.paths.readings import Product, Reading, RowsReading, Snapshot
from smbox.wire.ops import cut
from smbox.work import Pause, Work


class LocalRead(LocalWork[Reading]):
    """What is left of a read."""

    def step(self) -> None:
        """Read what is left."""
        wanted, reader, first = self.wanted, self.queue.reader, self.first
        region = self.queue.regions.region(wanted.info)
        reader.done = self.at - first  # not that of an earlier read
        try:
            reader.read(region, first, self.limit, wanted.out, wanted.operand, reader.done)
        finally:
            self.at = first + reader.done


class LocalRows(LocalWork[RowsReading]):
    """A read of rows, portion by portion."""

    has_ranges = False

    def step(self) -> None:
        """Read the rows that are left."""
        wanted, queue = self.wanted, self.queue
        region = queue.regions.region(wanted.info)
        while self.at < self.limit:
            limit = wanted.portion_limit(self.at)
            places = wanted.places[self.at : limit]
            rows = np.empty((places.size, wanted.out.shape[1]), np.uint8)
            queue.reader.read_rows(
                region, wanted.begin, places, wanted.row_nbytes, rows, operand=wanted.operand
            )
            wanted.fill(self.at, limit, rows)
            self.at = limit


class LocalDot(LocalWork[Product]):
    """The sums of products of two ranges, stripe by stripe of the first one."""

    def step(self) -> None:
        """Sum what is left."""
        wanted, queue = self.wanted, self.queue
        region, other = map(queue.regions.region, (wanted.info, wanted.other))
        first, ahead = self.first, wanted.other_first - self.first
        for at, end in cut(self.at, self.limit, STRIPE_NBYTES):
            found = queue.reader.dot(region, at, other, at + ahead, end - at)
            wanted.sums[at // STRIPE_NBYTES - first // STRIPE_NBYTES] = found
            self.at = end


class LocalSnapshot(LocalWork[Snapshot]):
    """A read of a range at one moment; it holds stripes while somebody waits for it."""

    _hold: Hold | None = None

    def step(self) -> None:
        """Copy the range once all its stripes are held."""
        if self._hold is None:
            region = self.queue.regions.region(self.wanted.info)
            self._hold = Hold(region, self.queue.locks, self.first, self.limit)
        self._hold.copy_to(self.wanted.out)

    def rested(self) -> None:
        """Release what is held."""
        if self._hold is not None:
            self._hold.release()


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
