"""A copy of a range at one moment that a SNAPSHOT has begun.

All stripes of the range are held while it is copied, a slice at a time, so that the node serves
others. Locks belong to an open file: those of a snapshot are in one of its own, or the node's
next commit would pass through them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memnode.holding import LockFiles
from smbox.memory.hold import Hold, held_stripes
from smbox.memory.mapped import MappedRegion
from smbox.memory.recovery import StripeBusy

SLICE_NBYTES: Final = 8 << 20

HELD_S: Final = 5.0
"""How long stripes are kept while another one is waited for; then others have their turn. A
client that has given up does not say so at once."""


class Snapshot:
    """A copy in the making.

    Args:
        lock_files: lend it one.
        region: what is copied.
        span: first byte of its data that is wanted, and the byte behind the last.
        target: the region that takes the copy.
        begin: byte of its data where the copy begins.
        now_s: monotonic seconds.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(
        self,
        lock_files: LockFiles,
        region: MappedRegion,
        span: tuple[int, int],
        target: MappedRegion,
        begin: int,
        *,
        now_s: float,
    ) -> None:
        stripes = held_stripes(region, *span)
        self._region = region
        self._at, self._limit = span
        self._target, self._ahead = target, begin - span[0]
        self._files = lock_files
        self._locks = lock_files.take()
        self._hold = Hold(region, self._locks, stripes)
        self._limit_s = now_s + HELD_S

    def step(self, *, now_s: float) -> bool:
        """Copy a slice, once all stripes are held; True when all is copied.

        Raises:
            StripeBusy: another writer holds a stripe; those before it stay held, for a while.
            RegionFreedError: the region was freed.
        """
        try:
            self._hold.take()
        except StripeBusy:
            if now_s >= self._limit_s:
                self._hold.release()
                self._limit_s = now_s + HELD_S
            raise
        at, limit = self._at, min(self._at + SLICE_NBYTES, self._limit)
        out = self._target.data[at + self._ahead : limit + self._ahead]
        np.copyto(out, self._region.data[at:limit])
        self._at = limit
        return limit == self._limit

    def end(self) -> None:
        """Release the stripes and give the lock file back."""
        self._hold.release()
        self._files.give(self._locks)
