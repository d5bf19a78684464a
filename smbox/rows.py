"""Rows: some rows of a region, picked by their index along axis 0; sparse verbs.

Only the rows that are named travel and change. An index may name a row twice: ``accumulate``
adds all of its values, ``put`` leaves the last one. Atomic are the rows of one stripe together
within one call; a row across two stripes is changed in two commits. Each verb has a twin
``verb_nb``; errors and timeouts are those of region.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.array import as_bytes, output_array, source_array, typed_array
from smbox.errors import AddressRangeError, ConfigError
from smbox.handle import Handle
from smbox.memory.kernels import (
    PLACE_NBYTES,
    SCATTER_HEADER_NBYTES,
    KernelCode,
    scale_of,
    scatter_operand,
)
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.pair import PathPair
from smbox.paths.readings import RowsReading
from smbox.paths.sinks import Bytes
from smbox.paths.work import Changes, Operation, RegionInfo
from smbox.verbs import Extent, operand_of
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.ops import cut


class Rows:
    """Rows of a region or slice; keeps a copy of the index.

    Attributes:
        shape: of the values: the index's shape, then that of a row.
        dtype: numpy's.

    Args:
        paths: to the node, shared with the region.
        extent: the region or slice.
        index: whole numbers of any shape, 0 to the length of axis 0.

    Raises:
        AddressRangeError: an IndexError: a row outside the region; nothing was sent.
        ConfigError: a region without axes, or with rows of no or more than 1 MiB of data.
        TypeError: the index holds no whole numbers.
    """

    __slots__ = ("_extent", "_paths", "_places", "_row_nbytes", "dtype", "shape")

    def __init__(self, paths: PathPair, extent: Extent, index: Any) -> None:
        self._paths = paths
        self._extent = extent
        self.dtype: np.dtype[Any] = extent.info.dtype.numpy
        self._row_nbytes = math.prod(extent.shape[1:]) * self.dtype.itemsize
        if not extent.shape or not 0 < self._row_nbytes <= REQUEST_NBYTES_MAX:
            raise ConfigError(
                "rows are of 1 byte to 1 MiB, along axis 0",
                region=extent.info.name,
                shape=extent.shape,
            )
        places = _whole_numbers(index)
        self.shape = (*places.shape, *extent.shape[1:])
        self._places: NDArray[np.int64] = _inside(places, extent).reshape(-1)

    def get(self, out: Any = None, *, timeout_s: float | None = None) -> Any:
        """Read the rows; atomic are those of one stripe, as of a change of rows.

        Of float32, ``out`` may be of float16 or bfloat16: each element is rounded to nearest.

        Returns:
            ``out`` (filled), or a new array, ``[shape]``.
        """
        out, reading = self._reading(out)
        self._paths.finish(reading, timeout_s)
        return out

    def get_nb(self, out: Any = None) -> Handle[Any]:
        """Begin a ``get``."""
        out, reading = self._reading(out)
        return self._paths.begin(reading, lambda: out)

    def _reading(self, out: Any) -> tuple[Any, RowsReading]:
        """Describe a ``get``; return also what it fills."""
        if out is None:
            array = out = np.empty(self.shape, self.dtype)
        else:
            array = output_array(out, self.dtype, self.shape, may_be_narrower=True)
        info, places = self._extent.info, self._places
        order = np.argsort(places, kind="stable")
        rows = as_bytes(array).reshape(places.size, -1) if places.size else as_bytes(array)
        span, operand = (self._extent.first, self._row_nbytes), operand_of(info.dtype, array)
        return out, RowsReading(info, *span, places[order], order, rows, operand)

    def put(self, values: Any, *, timeout_s: float | None = None) -> None:
        """Replace the rows by ``values``, ``[shape]``; of a repeated one the last stays.

        Of float32, they may be of float16 or bfloat16: they are widened before they are sent.
        """
        self._paths.finish(self._putting(values), timeout_s)

    def put_nb(self, values: Any) -> Handle[None]:
        """Begin a ``put``; the values are copied."""
        return self._paths.begin(self._putting(values))

    def _putting(self, values: Any) -> Changes:
        return self._changes("put", KernelCode.SCATTER_PUT, KernelCode.REPLACE, values, 1)

    def accumulate(
        self, values: Any, scale: float = 1.0, *, timeout_s: float | None = None
    ) -> None:
        """Add ``scale * values``, ``[shape]``, to the rows; repeated ones add up.

        They may be narrower, as of ``put``.
        """
        self._paths.finish(self._adding(values, scale), timeout_s)

    def accumulate_nb(self, values: Any, scale: float = 1.0) -> Handle[None]:
        """Begin an ``accumulate``; the values are copied."""
        return self._paths.begin(self._adding(values, scale))

    def _adding(self, values: Any, scale: float) -> Changes:
        scale_of(KernelCode.SUM, self._extent.info.dtype, scale)
        kernels = KernelCode.SCATTER_SUM, KernelCode.SUM
        return self._changes("accumulate", *kernels, values, scale)

    def _changes(
        self, op: str, kernel: KernelCode, plain: KernelCode, values: Any, scale: float
    ) -> Changes:
        array = source_array(values, self.dtype, self.shape, may_be_narrower=True)
        items: list[Operation] = []
        if self._places.size:
            table = array.reshape(self._places.size, -1).astype(self.dtype)
            items = self._items(RowChange(op, kernel, plain, scale, self._places, table))
        return Changes(op, self._extent.info, items)

    def _items(self, change: RowChange) -> list[Operation]:
        """Cut a change into commits; each node's are of the rows that lie there."""
        pieces = self._extent.info.pieces(self._extent.first, self._extent.limit)
        if len(pieces) == 1:
            return list(row_items(pieces[0].info, pieces[0].first, change))
        items: list[Operation] = []
        for piece in pieces:
            first_row = (piece.begin - self._extent.first) // self._row_nbytes
            local = change.places - first_row
            here = np.flatnonzero((local >= 0) & (local < piece.nbytes // self._row_nbytes))
            if here.size:
                mine = change._replace(places=local[here], values=change.values[here])
                items += row_items(piece.info, piece.first, mine)
        return items

    def __len__(self) -> int:
        return self._places.size

    def __repr__(self) -> str:
        return f"Rows({self._extent.info.name!r}, shape={self.shape}, dtype={self.dtype})"


def _whole_numbers(index: Any) -> NDArray[Any]:
    array = typed_array(index)
    found = np.asarray(index) if array is None else array
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"rows are picked by whole numbers, not {found.dtype}")
    return found


def _inside(places: NDArray[Any], extent: Extent) -> NDArray[np.int64]:
    """Return the places as int64, copied, if all of them are rows."""
    rows = extent.shape[0]
    if places.size:
        low, high = int(places.min()), int(places.max())
        if low < 0 or high >= rows:
            raise AddressRangeError(
                "rows outside the region",
                region=extent.info.name,
                low=low,
                high=high,
                rows=rows,
            )
    return places.astype(np.int64)


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
    for first, limit in cut(begin, begin + source.size, STRIPE_NBYTES):
        part = source[first - begin : limit - begin]
        yield Operation(info, change.op, change.plain, change.scale, first, limit, part)


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
