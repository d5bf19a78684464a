"""Reads of mapped regions, locks of a range for snapshots, and stamps for zero-copy reads.

The reader of single stripes is smbox/native/read.c: it never returns a part of a commit.

A snapshot locks its stripes in ascending order, each as soon as it is free, and keeps them.
Writers of single stripes do not wait while they hold a lock, so no deadlock is possible. A
snapshot does not starve as long as its caller retries. A caller that gives up releases the
locks.

A stamp validates a zero-copy read over the wire: a seqlock whose reader is a remote client
(Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). It is
computed before the bytes are sent and again after they have arrived. If both are equal, no
commit began, continued or ended in between. It is a digest of the sequence words, not a sum: a
sum could stay the same when the count of undone commits of one stripe wraps to 0.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory import orders
from smbox.memory.commit import SHORT_NBYTES, StripeBusy, clear_obstacle, recover_held
from smbox.memory.layout import STRIPE_NBYTES, Consistency, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import READING_DONE, Block, address_of, write_range_reading
from smbox.native import library

CHANGING: Final = 0
"""The stamp of a range with an open stripe. It never validates a read, not even if repeated."""

_DONE: Final = int(orders.Result.DONE)


class Reader:
    """The reader of one thread.

    Attributes:
        done: bytes, or rows, that the last read has copied; a stopped read continues there.

    Args:
        locks: a holder of locks that only this thread uses.
    """

    __slots__ = ("_block", "_locks", "_long", "_short", "done")

    def __init__(self, locks: LockFile) -> None:
        self.done = 0
        self._locks = locks
        self._block = Block(orders.READING_NBYTES)
        native = library.load()
        self._short: Any = native.short.smbox_read
        self._long: Any = native.long.smbox_read

    def read_once(
        self,
        region: MappedRegion,
        first: int,
        limit: int,
        out: NDArray[Any],
        operand: int = 0,
        done: int = 0,
    ) -> bool:
        """Make one native call of ``read``; return whether all is read. Raises no errors."""
        block, nbytes = self._block, limit - first
        code = operand or region.dtype_code
        write_range_reading(
            block.bytes, 0, region.block.address, first, limit, address_of(out), code, done
        )
        read = self._short if nbytes <= SHORT_NBYTES else self._long
        result = read(block.ref, self._locks.ref)
        self.done = block.words[READING_DONE]
        return result == _DONE and self.done == nbytes

    def read(
        self,
        region: MappedRegion,
        first: int,
        limit: int,
        out: NDArray[Any],
        operand: int = 0,
        done: int = 0,
    ) -> None:
        """Copy bytes ``[first, limit)`` of a region; each stripe is as of one moment.

        Args:
            region: the region.
            first: first byte of its data.
            limit: byte after the last one.
            out: C-contiguous; as many elements as the range has.
            operand: dtype code of ``out``; 0: the region's. A float32 region can also be read
                as float16 or bfloat16, rounded to nearest.
            done: bytes that an earlier call has copied.

        Raises:
            StripeBusy: a writer holds a stripe; continue at ``done``.
            RegionFreedError: the region was freed; the contents of ``out`` are undefined.
        """
        while not self.read_once(region, first, limit, out, operand, done):
            self._clear(region)
            done = self.done

    def read_rows(
        self,
        region: MappedRegion,
        first: int,
        places: NDArray[np.int64],
        row_nbytes: int,
        out: NDArray[np.uint8],
        *,
        operand: int = 0,
    ) -> None:
        """Copy rows; consecutive ``places`` in one stripe are read as of one moment.

        A row across two stripes is read like a range, one stripe after the other. After an
        error the caller starts again.

        Args:
            region: the region.
            first: byte of its data where row 0 begins.
            places: ``i64[count]``, C-contiguous: indices of rows, all in the region.
            row_nbytes: bytes of a row in the region, at least 1.
            out: ``[count, row]``, C-contiguous.
            operand: see ``read``.

        Raises:
            StripeBusy, RegionFreedError: as ``read``.
        """
        block, count = self._block, places.size
        code, to = operand or region.dtype_code, address_of(out)
        rows = first, first, address_of(places), count, row_nbytes, to, code, 0
        orders.write_reading(block.bytes, 0, region.block.address, *rows)
        read = self._short if count * row_nbytes <= SHORT_NBYTES else self._long
        while read(block.ref, self._locks.ref) != _DONE:
            self._clear(region)

    def dot(
        self, region: MappedRegion, first: int, other: MappedRegion, begin: int, nbytes: int
    ) -> float:
        """Sum the products of two ranges of floats, in float64 and in a fixed order.

        Each stripe is as of one moment. If both ranges are the same, it is read once. ``done``
        has no meaning afterwards.

        Args:
            region: of floats.
            first: first byte of its data.
            other: of the same dtype; it may be the same region.
            begin: first byte of its data.
            nbytes: of each range.

        Raises:
            StripeBusy: a writer holds a stripe; call again.
            RegionFreedError: one of the regions was freed.
        """
        a = b = np.empty(nbytes, np.uint8)
        self.read(region, first, first + nbytes, a)
        if (other.address, begin) != (region.address, first):
            b = np.empty(nbytes, np.uint8)
            self.read(other, begin, begin + nbytes, b)
        found = np.zeros(())
        handles = library.load()
        dot: Any = (handles.short if nbytes <= SHORT_NBYTES else handles.long).smbox_dot
        result = dot(
            orders.address_of(a),
            orders.address_of(b),
            nbytes // region.spec.dtype.itemsize,
            region.dtype_code,
            orders.address_of(found),
        )
        if result != _DONE:
            clear_obstacle(region, result, 0, self._locks)
        return float(found)

    def _clear(self, region: MappedRegion) -> None:
        """Update ``done``, and recover the stripe that stopped the call, or raise."""
        self.done, result, stripe = self._block.words[READING_DONE : READING_DONE + 3]
        clear_obstacle(region, result, stripe, self._locks)


class RangeLock:
    """Locks of all stripes of a range.

    Args:
        region: the region.
        locks: a holder of locks that the caller uses for no commits.
        first: byte of its data.
        limit: byte after the last one, above ``first``.

    Raises:
        ConfigError: the region has consistency "none".
    """

    def __init__(self, region: MappedRegion, locks: LockFile, first: int, limit: int) -> None:
        if region.spec.consistency == Consistency.NONE:
            raise ConfigError("a region without locks has no snapshots", name=region.spec.name)
        self._region = region
        self._range = slice(first, limit)
        self._stripes = range(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
        self._next = self._stripes.start
        self._locks = locks

    def acquire(self) -> None:
        """Lock the stripes that are not locked yet.

        A stripe that a dead writer left open is recovered.

        Raises:
            StripeBusy: another process holds the next stripe; the earlier ones stay locked.
            RegionFreedError: the region was freed; the caller releases the stripes.
        """
        while self._next < self._stripes.stop:
            if not self._region.try_lock(self._next, self._locks):
                raise StripeBusy(self._region, self._next)
            recover_held(self._region, self._next, self._locks)
            self._next += 1
        self._region.check_usable()

    def copy_to(self, out: NDArray[np.uint8]) -> None:
        """Lock all stripes, copy the range and release the locks: a snapshot.

        Args:
            out: as many bytes as the range.

        Raises:
            StripeBusy, RegionFreedError: as ``acquire``; call again.
        """
        self.acquire()
        try:
            np.copyto(out, self._region.data[self._range])
            self._locks.check_own()  # in a child that was forked meanwhile, the locks are gone
        finally:
            self.release()

    def release(self) -> None:
        """Release all stripes; ``acquire`` starts again."""
        self._next = self._stripes.start  # first: an interrupt may come after any stripe
        for stripe in self._stripes:
            self._region.unlock(stripe, self._locks)


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
