"""Sparse rows: the operand that names rows inside one stripe. Pure.

A scatter's operand is bytes: how many rows, the bytes of a row, their places, their values.

    count u64 | row_nbytes u64 | place i64[count] | values u8[count, row_nbytes]

A place counts rows from the first byte of the commit's range. A row that lies across two
stripes is no row of either: its halves travel as ordinary changes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HEADER_NBYTES: Final = 16
PLACE_NBYTES: Final = 8


def operand_nbytes(count: int, row_nbytes: int) -> int:
    """Return the size of an operand of ``count`` rows."""
    return HEADER_NBYTES + count * (PLACE_NBYTES + row_nbytes)


def pack(places: NDArray[np.int64], values: Array) -> NDArray[np.uint8]:
    """Make an operand.

    Args:
        places: ``i64[count]``, rows from the first byte of the range.
        values: ``[count, ...]`` of the region's dtype, C-contiguous.
    """
    count = places.size
    row_nbytes = values.nbytes // count if count else 0
    operand = np.empty(operand_nbytes(count, row_nbytes), np.uint8)
    operand[:HEADER_NBYTES].view(np.uint64)[:] = (count, row_nbytes)
    middle = HEADER_NBYTES + count * PLACE_NBYTES
    operand[HEADER_NBYTES:middle].view(np.int64)[:] = places
    operand[middle:] = values.reshape(-1).view(np.uint8)
    return operand
