"""Sparse rows: the operand that names rows inside one stripe, and what is done with it. Pure.

A scatter's operand is bytes: how many rows, the bytes of a row, their places, their values.

    count u64 | row_nbytes u64 | place i64[count] | values u8[count, row_nbytes]

A place counts rows from the first byte of the commit's range. A row that lies across two
stripes is no row of either: its halves travel as ordinary changes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError

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


def unpack(
    operand: NDArray[np.uint8], data_nbytes: int, itemsize: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Take an operand apart into places ``i64[count]`` and values ``u8[count, row_nbytes]``.

    Raises:
        ConfigError: it is damaged, or names rows outside the range.
    """
    if operand.size < HEADER_NBYTES:
        raise ConfigError("the operand of a scatter has the wrong length", nbytes=operand.size)
    count, row_nbytes = (int(word) for word in operand[:HEADER_NBYTES].view(np.uint64))
    whole_rows = row_nbytes > 0 and row_nbytes % itemsize == 0
    if not whole_rows or operand.size != operand_nbytes(count, row_nbytes):
        raise ConfigError("the operand of a scatter has the wrong length", rows=count)
    middle = HEADER_NBYTES + count * PLACE_NBYTES
    places = operand[HEADER_NBYTES:middle].view(np.int64)
    if count and not 0 <= int(places.min()) <= int(places.max()) < data_nbytes // row_nbytes:
        raise ConfigError("a scatter names rows outside its range", rows=count)
    return places, operand[middle:].reshape(count, row_nbytes)


def scatter_put(data: Array, source: Array, _scale: Any) -> None:
    """Write rows; of a repeated place the last value stays."""
    rows, places, values = _rows(data, source)
    rows[places] = values


def scatter_sum(data: Array, source: Array, scale: Any) -> None:
    """Add ``scale`` times each row to its place; repeated places add up, in order."""
    rows, places, values = _rows(data, source)
    np.add.at(rows, places, values if scale == 1 else np.multiply(values, scale))


def gather(data: Array, places: NDArray[np.int64], row_nbytes: int) -> Array:
    """Return copies of rows of a range, ``[count, row]`` of its dtype."""
    row = row_nbytes // data.itemsize
    copied: Array = data[: data.size // row * row].reshape(-1, row)[places]
    return copied


def _rows(data: Array, source: Array) -> tuple[Array, NDArray[np.int64], Array]:
    places, values = unpack(source.view(np.uint8), data.nbytes, data.itemsize)
    row = values.shape[1] // data.itemsize
    return (
        data[: data.size // row * row].reshape(-1, row),
        places,
        np.ascontiguousarray(values).view(data.dtype),
    )
