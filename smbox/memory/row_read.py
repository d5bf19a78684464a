"""Sparse reads: rows of a region, each stripe's share of them as between two commits.

All rows are copied at once between two looks at the stripes' words; the few whose stripes
were written meanwhile are then read one by one. Nothing but rows is touched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smbox.memory.layout import STRIPE_NBYTES, Consistency, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import ORDERS_LOADS, read_range


class RowRead:
    """A read of rows, which goes on where it was stopped.

    Args:
        region: of consistency "stripe" or "none".
        first: byte of its data where row 0 begins.
        places: ``i64[count]``: which rows; all of them lie in the region.
        row_nbytes: bytes of a row, at least 1.
        out: ``u8[count, row_nbytes]``.
    """

    def __init__(
        self,
        region: MappedRegion,
        first: int,
        places: NDArray[np.int64],
        row_nbytes: int,
        out: NDArray[np.uint8],
    ) -> None:
        self._region = region
        self._row_nbytes = row_nbytes
        self._begins = places * row_nbytes + first
        self._rows = _rows_of(region, first, row_nbytes)
        self._places = places
        self._out = out
        self._left: NDArray[np.int64] | None = None  # rows to be read one by one

    def step(self, locks: LockFile) -> None:
        """Read what is left.

        Raises:
            StripeBusy: a writer is in the middle of a commit; call again.
            RegionFreedError: the region was freed.
        """
        self._region.check_usable()  # pages given back cannot be read if /dev/shm is full
        if self._left is None:
            self._left = self._copy_all()
        for at in self._left.tolist():
            begin = int(self._begins[at])
            read_range(self._region, begin, begin + self._row_nbytes, self._out[at], locks)
            self._left = self._left[1:]
        self._region.check_usable()

    def _copy_all(self) -> NDArray[np.int64]:
        """Copy every row; return those that may be torn."""
        lowest = self._begins // STRIPE_NBYTES
        highest = (self._begins + self._row_nbytes - 1) // STRIPE_NBYTES
        seqs = self._region.table[:, Stripe.SEQ]
        before = seqs.copy()
        np.take(self._rows, self._places, axis=0, out=self._out, mode="clip")
        if self._region.spec.consistency == Consistency.NONE:
            return np.empty(0, np.int64)
        is_torn = (before != seqs) | (before & np.uint64(1)).astype(bool)
        if not ORDERS_LOADS:
            is_torn[:] = True
        if not is_torn.any():
            return np.empty(0, np.int64)
        torn_below = np.concatenate([[0], np.cumsum(is_torn)])
        return np.flatnonzero(torn_below[highest + 1] > torn_below[lowest])


def _rows_of(region: MappedRegion, first: int, row_nbytes: int) -> NDArray[np.uint8]:
    count = (region.nbytes - first) // row_nbytes
    return region.data[first : first + count * row_nbytes].reshape(count, row_nbytes)
