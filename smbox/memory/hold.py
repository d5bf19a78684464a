"""Many stripes of a region as of one moment: held for a snapshot, or compared by a stamp.

For a snapshot stripes are locked in ascending order and kept, each as soon as it is free.
Writers of single stripes only try and never wait inside the memory, so nobody can wait in a
circle, and a holder that has begun does not starve, as long as it is driven. Who leaves it lets
go first.

By a stamp a reader far away knows that bytes are whole which were sent uncopied: a sequence
lock whose reader is at the other end of the wire (Boehm, "Can seqlocks get along with
programming language memory models?", MSPC 2012). It is taken before the bytes are sent and once
more when they have arrived. If it is the same, no commit began, went on or ended in between. It
is a digest of the sequence words: a sum could stay the same when one word falls, as the count
of undone commits does when it wraps.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory import recovery
from smbox.memory.layout import STRIPE_NBYTES, Consistency, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.recovery import StripeBusy

CHANGING: Final = 0
"""The stamp of what is being changed just now: equal to no other, and not to itself."""


class Hold:
    """The stripes of a range, that are, or are being, locked.

    Locks belong to an open file: what commits through the same one would pass through these.

    Args:
        region: the region.
        locks: an open of the lock file that the caller commits nothing with.
        first: byte of its data.
        limit: byte behind the last, above ``first``.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(self, region: MappedRegion, locks: LockFile, first: int, limit: int) -> None:
        if region.spec.consistency == Consistency.NONE:
            raise ConfigError("a region without locks has no snapshots", name=region.spec.name)
        self._region = region
        self._range = slice(first, limit)
        self._stripes = range(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
        self._next = self._stripes.start
        self._locks = locks

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
            recovery.recover_held(self._region, self._next)
            self._next += 1
        try:
            self._region.check_usable()
        except BaseException:
            self.release()
            raise

    def copy_to(self, out: NDArray[np.uint8]) -> None:
        """Copy the range while all its stripes are held: a snapshot; releases them.

        Args:
            out: as many bytes as the range has.

        Raises:
            StripeBusy, RegionFreedError: as ``take``; call again.
        """
        self.take()
        try:
            np.copyto(out, self._region.data[self._range])
        finally:
            self.release()

    def release(self) -> None:
        """Let all go; ``take`` begins anew."""
        first = self._region.lock_byte(self._stripes.start)
        self._locks.unlock(first, len(self._stripes) * STRIPE_NBYTES)
        self._next = self._stripes.start


def stamp_of(region: MappedRegion, first: int, limit: int) -> int:
    """Return the stamp of bytes ``[first, limit)`` of a region's data, not empty.

    Returns:
        A digest of 64 bits, not 0; or CHANGING.
    """
    stripes = slice(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
    words = region.table[stripes, Stripe.SEQUENCE].copy()
    if np.any(words & np.uint64(Stripe.OPEN)):
        return CHANGING
    digest = blake2b(words.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
