"""Keeping many stripes of a region at once: for region-wide changes and snapshots.

Stripes are locked in ascending order and kept, each as soon as it is free. Writers of single
stripes only try and never wait inside the memory, so nobody can wait in a circle, and a
holder that has begun does not starve, as long as it is driven. Who leaves it lets go first.
"""

from __future__ import annotations

from smbox.memory import recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion


class Hold:
    """Stripes of a region that are, or are being, locked.

    Args:
        region: the region.
        locks: an open of the lock file of the caller's own.
        stripes: which stripes.
    """

    def __init__(self, region: MappedRegion, locks: LockFile, stripes: range) -> None:
        self._region = region
        self._locks = locks
        self._stripes = stripes
        self._next = stripes.start

    def take(self) -> None:
        """Lock on, from where the last call stopped; returns when all are held.

        A stripe that a dead writer left open is recovered.

        Raises:
            StripeBusy: somebody else holds the next one; those before it stay held.
            RegionFreedError: the region was freed; nothing stays held.
        """
        while self._next < self._stripes.stop:
            if not self._locks.try_lock(self._region.lock_byte(self._next)):
                raise StripeBusy(self._region, self._next)
            if self._region.table[self._next, Stripe.SEQ] & 1:
                recovery.recover_stripe(self._region, self._next, self._locks)
            self._next += 1
        try:
            self._region.check_usable()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let all go, and not a byte more: behind the last one the next region's may lie."""
        first = self._region.lock_byte(self._stripes.start)
        last = self._region.lock_byte(self._stripes.stop - 1)
        self._locks.unlock(first, last + 1 - first)
        self._next = self._stripes.start
