"""Stripe-atomic reads by smbox/native/read.c: no reader ever sees half of a commit."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory import orders, recovery
from smbox.memory.commit import SHORT_NBYTES, raise_obstacle
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import READING_DONE, Block, address_of, write_range_reading
from smbox.native import library

_DONE: Final = int(orders.Result.DONE)


class Reader:
    """Reads of one thread; where a read was stopped, ``done`` says, and ``at`` goes on there.

    Attributes:
        done: bytes, or rows, that the last read has brought.

    Args:
        locks: an open of the lock file that is the thread's own.
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
        """Do one call of a ``read``, which raises nothing; True if all is there."""
        block, nbytes = self._block, limit - first
        code = operand or region.dtype_code
        write_range_reading(
            block.bytes, 0, region.block.address, first, limit, address_of(out), code, done
        )
        read = self._short if nbytes <= SHORT_NBYTES else self._long
        result = read(block.ref, self._locks.fd)
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
        """Copy bytes ``[first, limit)`` of a region, each stripe as between two commits.

        Args:
            region: the region.
            first: first byte of its data that is wanted.
            limit: byte behind the last.
            out: C-contiguous; as many elements as the range has.
            operand: dtype code of ``out``; 0: the region's. A float32 region is also read as
                float16 or bfloat16, rounded to nearest.
            done: bytes that an earlier call has brought.

        Raises:
            StripeBusy: a writer is in the middle of a commit; go on at ``done``.
            RegionFreedError: the region was freed; ``out`` holds anything.
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
        """Copy rows; neighbours in ``places`` that lie in one stripe are of one moment.

        A row across two stripes is read like a range, each stripe's part of it by itself.
        After an error begin anew.

        Args:
            region: the region.
            first: byte of its data where row 0 begins.
            places: ``i64[count]``, C-contiguous: which rows; all of them lie in the region.
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
        while read(block.ref, self._locks.fd) != _DONE:
            self._clear(region)

    def dot(
        self, region: MappedRegion, first: int, other: MappedRegion, begin: int, nbytes: int
    ) -> float:
        """Sum the products of two ranges of floats, in float64 and in a fixed order.

        Each stripe of either is as between two commits; a range beside itself is read once.
        ``done`` tells nothing.

        Args:
            region: of floats.
            first: first byte of its data.
            other: of the same dtype; it may be the same region.
            begin: first byte of its data.
            nbytes: of each range.

        Raises:
            StripeBusy: a writer is in the middle of a commit; call again.
            RegionFreedError: one was freed.
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
            raise_obstacle(region, result, 0)
        return float(found)

    def _clear(self, region: MappedRegion) -> None:
        """Note how far a call came, and recover the stripe that stopped it, or raise."""
        self.done, result, stripe = orders.reading_outcome(self._block)
        if result == orders.Result.OPEN:
            recovery.recover_stripe(region, stripe, self._locks)
        elif result != _DONE:  # else the library has paused, for signals to come through
            raise_obstacle(region, result, stripe)
