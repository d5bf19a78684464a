"""Changes of rows, cut into commits: a stripe's rows together, torn rows in pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.memory.kernels import (
    PLACE_NBYTES,
    SCATTER_HEADER_NBYTES,
    KernelCode,
    scatter_operand,
)
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import pieces
from smbox.paths.work import Bytes, Operation, RegionInfo
from smbox.wire.header import REQUEST_NBYTES_MAX


class RowChange(NamedTuple):
    """A change of rows.

    Attributes:
        op: name of the verb.
        scatter: kernel for the rows of one stripe.
        plain: kernel that does the same to the pieces of a single row.
        scale: of the sum; else 1.
        places: ``i64[count]``: which rows; all of them lie in the region.
        values: ``[count, elements of a row]`` of the region's dtype, C-contiguous.
    """

    op: str
    scatter: KernelCode
    plain: KernelCode
    scale: float
    places: NDArray[np.int64]
    values: NDArray[Any]


def row_items(info: RegionInfo, first: int, change: RowChange) -> Iterator[Operation]:
    """Cut a change of rows into commits within one stripe each.

    Changes of one row keep their order; a row's place decides which kind of commit it takes.

    Args:
        info: the region.
        first: byte of its data where row 0 begins.
        change: what is done to which rows.
    """
    row_nbytes = change.values.nbytes // change.places.size
    begins = change.places * row_nbytes + first
    stripes = begins // STRIPE_NBYTES
    is_torn = stripes != (begins + row_nbytes - 1) // STRIPE_NBYTES
    for at in np.flatnonzero(is_torn).tolist():
        yield from _torn(info, change, int(begins[at]), at)
    inside = np.flatnonzero(~is_torn)
    if inside.size == 0:
        return
    inside = inside[np.argsort(stripes[inside], kind="stable")]
    ends = np.flatnonzero(np.diff(stripes[inside])) + 1
    most = (REQUEST_NBYTES_MAX - SCATTER_HEADER_NBYTES) // (PLACE_NBYTES + row_nbytes)
    for group in np.split(inside, ends):
        for at in range(0, group.size, most):
            yield _scattered(info, change, first, group[at : at + most])


def _torn(info: RegionInfo, change: RowChange, begin: int, at: int) -> Iterator[Operation]:
    source: Bytes = change.values[at].reshape(-1).view(np.uint8)
    for piece in pieces(begin, begin + source.size):
        part = source[piece.first - begin : piece.limit - begin]
        yield Operation(
            info, change.op, change.plain, change.scale, piece.first, piece.limit, part
        )


def _scattered(
    info: RegionInfo, change: RowChange, first: int, group: NDArray[np.intp]
) -> Operation:
    places, values = change.places[group], change.values[group]
    row_nbytes = values.nbytes // group.size
    low, high = int(places.min()), int(places.max())
    return Operation(
        info,
        change.op,
        change.scatter,
        change.scale,
        first + low * row_nbytes,
        first + (high + 1) * row_nbytes,
        scatter_operand(places - low, values),
    )
