"""Rows: sparse verbs on rows of a region, selected by index along axis 0.

Only the selected rows are sent and changed. An index may repeat a row: ``accumulate`` adds all
its values, ``put`` keeps the last. The rows of one stripe change atomically within one call; a
row that crosses a stripe boundary is changed in two commits. Each verb has a twin ``verb_nb``.
smbox.region describes errors and timeouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.array import as_bytes, output_array, source_array, typed_array
from smbox.errors import AddressRangeError, ConfigError
from smbox.handle import Handle
from smbox.memory.kernels import (
    PLACE_NBYTES,
    SCATTER_HEADER_NBYTES,
    KernelCode,
    packed_scale,
    scatter_operand,
)
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.pair import PathPair
from smbox.paths.requests import Changes, Operation, RegionInfo, RowsReading
from smbox.verbs import Extent, operand_of
from smbox.wire.header import NO_SCALE, REQUEST_NBYTES_MAX
from smbox.wire.ops import cut

Kernels = tuple[KernelCode, KernelCode]
PUT_KERNELS: Final = KernelCode.SCATTER_PUT, KernelCode.REPLACE
SUM_KERNELS: Final = KernelCode.SCATTER_SUM, KernelCode.SUM


class Rows:
    """Selected rows of a region or slice; keeps a copy of the index.

    Attributes:
        shape: shape of the values: the index's shape, then that of a row.
        dtype: numpy dtype of the elements.

    Args:
        paths: paths to the node, shared with the region.
        extent: the region or slice.
        index: integers of any shape, from 0 to the length of axis 0 - 1.

    Raises:
        AddressRangeError: an index is outside the region (also an IndexError); nothing was
            sent.
        ConfigError: the region has no axes, or its rows have 0 bytes or more than 1 MiB.
        TypeError: the index does not consist of integers.
    """

    __slots__ = ("_extent", "_paths", "_places", "_row_nbytes", "dtype", "shape")

    def __init__(self, paths: PathPair, extent: Extent, index: Any) -> None:
        self._paths = paths
        self._extent = extent
        self.dtype: np.dtype[Any] = extent.info.dtype.numpy
        self._row_nbytes = math.prod(extent.shape[1:]) * self.dtype.itemsize
        if not extent.shape or not 0 < self._row_nbytes <= REQUEST_NBYTES_MAX:
            raise ConfigError(
                "rows have 1 byte to 1 MiB, along axis 0",
                region=extent.info.name,
                shape=extent.shape,
            )
        places = _indices(index, extent)
        self.shape = (*places.shape, *extent.shape[1:])
        self._places: NDArray[np.int64] = places.reshape(-1)

    def get(self, out: Any = None, *, timeout_s: float | None = None) -> Any:
        """Read the rows; the rows of one stripe are read as they were between two commits.

        Args:
            out: an array ``[shape]`` that receives the rows; None: a new array. For a float32
                region it may be float16 or bfloat16: each element is rounded to nearest.
            timeout_s: see smbox.region.

        Returns:
            ``out``, or the new array.
        """
        out, reading = self._reading(out)
        self._paths.finish(reading, timeout_s)
        return out

    def get_nb(self, out: Any = None) -> Handle[Any]:
        """Start a ``get``; the handle's result is what ``get`` returns."""
        out, reading = self._reading(out)
        return self._paths.begin(reading, lambda: out)

    def _reading(self, out: Any) -> tuple[Any, RowsReading]:
        """Return what ``get`` returns, and the request that fills it."""
        if out is None:
            array = out = np.empty(self.shape, self.dtype)
        else:
            array = output_array(out, self.dtype, self.shape, may_be_narrower=True)
        info, places = self._extent.info, self._places
        order = np.argsort(places, kind="stable")
        rows = as_bytes(array).reshape(places.size, -1) if places.size else as_bytes(array)
        begin, row_nbytes = self._extent.first, self._row_nbytes
        operand = operand_of(info.dtype, array)
        return out, RowsReading(info, begin, row_nbytes, places[order], order, rows, operand)

    def put(self, values: Any, *, timeout_s: float | None = None) -> None:
        """Replace the rows with ``values``; of a repeated row the last value stays.

        Args:
            values: an array ``[shape]`` of the region's dtype. For a float32 region it may be
                float16 or bfloat16; it is widened before it is sent.
            timeout_s: see smbox.region.
        """
        self._paths.finish(self._changes("put", PUT_KERNELS, values, NO_SCALE), timeout_s)

    def put_nb(self, values: Any) -> Handle[None]:
        """Start a ``put``; the values are copied."""
        return self._paths.begin(self._changes("put", PUT_KERNELS, values, NO_SCALE))

    def accumulate(
        self, values: Any, scale: float = 1.0, *, timeout_s: float | None = None
    ) -> None:
        """Add ``scale * values`` to the rows; all values of a repeated row are added.

        Args:
            values: as for ``put``.
            scale: factor of the values; an integer in a region of integers.
            timeout_s: see smbox.region.
        """
        self._paths.finish(self._adding(values, scale), timeout_s)

    def accumulate_nb(self, values: Any, scale: float = 1.0) -> Handle[None]:
        """Start an ``accumulate``; the values are copied."""
        return self._paths.begin(self._adding(values, scale))

    def _adding(self, values: Any, scale: float) -> Changes:
        packed = packed_scale(KernelCode.SUM, self._extent.info.dtype, scale)
        return self._changes("accumulate", SUM_KERNELS, values, packed)

    def _changes(self, op: str, kernels: Kernels, values: Any, scale: bytes) -> Changes:
        """Cut a change into commits, for each node those of its rows."""
        extent, places = self._extent, self._places
        array = source_array(values, self.dtype, self.shape, may_be_narrower=True)
        table = array.reshape(places.size, self._row_nbytes // self.dtype.itemsize)
        table = table.astype(self.dtype, copy=False)
        items: list[Operation] = []
        for piece in extent.info.pieces(extent.first, extent.limit):
            local = places - (piece.begin - extent.first) // self._row_nbytes
            here = np.flatnonzero((local >= 0) & (local < piece.nbytes // self._row_nbytes))
            if here.size:
                mine = local[here], table[here]
                items += row_items(piece.info, piece.first, op, kernels, scale, *mine)
        return Changes(op, extent.info, items)

    def __len__(self) -> int:
        return self._places.size

    def __repr__(self) -> str:
        return f"Rows({self._extent.info.name!r}, shape={self.shape}, dtype={self.dtype})"


def _indices(index: Any, extent: Extent) -> NDArray[np.int64]:
    """Return a checked copy of an index as int64; raises as ``Rows``."""
    array = typed_array(index)
    places = np.asarray(index) if array is None else array
    if places.size == 0:
        return places.astype(np.int64)
    if places.dtype.kind not in "iu":
        raise TypeError(f"rows are picked by whole numbers, not {places.dtype}")
    low, high, rows = int(places.min()), int(places.max()), extent.shape[0]
    if low < 0 or high >= rows:
        name = extent.info.name
        raise AddressRangeError(
            "rows outside the region", region=name, low=low, high=high, rows=rows
        )
    return places.astype(np.int64)


def row_items(
    info: RegionInfo,
    first: int,
    op: str,
    kernels: Kernels,
    scale: bytes,
    places: NDArray[np.int64],
    values: NDArray[Any],
) -> Iterator[Operation]:
    """Cut a change of rows into commits within one stripe each.

    Changes of the same row keep their order: all are of the same kind, as the kind depends on
    the row's place alone.

    Args:
        info: the region.
        first: byte of its data where row 0 begins.
        op: name of the verb.
        kernels: for the rows of one stripe, and for the pieces of a single row.
        scale: of both kernels.
        places: ``i64[count]``, the rows; all are inside the region.
        values: ``[count, elements of a row]`` of the region's dtype, C-contiguous.
    """
    scatter, plain = kernels
    row_nbytes = values.nbytes // places.size
    begins = places * row_nbytes + first
    stripes = begins // STRIPE_NBYTES
    is_torn = stripes != (begins + row_nbytes - 1) // STRIPE_NBYTES
    for at in np.flatnonzero(is_torn).tolist():
        begin, row = int(begins[at]), as_bytes(values[at])
        for low, limit in cut(begin, begin + row_nbytes, STRIPE_NBYTES):
            yield Operation(
                info, op, plain, scale, low, limit, row[low - begin : limit - begin]
            )
    inside = np.flatnonzero(~is_torn)
    inside = inside[np.argsort(stripes[inside], kind="stable")]
    ends = np.flatnonzero(np.diff(stripes[inside])) + 1
    most = (REQUEST_NBYTES_MAX - SCATTER_HEADER_NBYTES) // (PLACE_NBYTES + row_nbytes)
    most = max(1, most)  # 0: such long rows are never inside one stripe
    for stripe in np.split(inside, ends):
        for at in range(0, stripe.size, most):
            group = stripe[at : at + most]
            mine = places[group]
            low_row, high_row = int(mine.min()), int(mine.max())
            span = first + low_row * row_nbytes, first + (high_row + 1) * row_nbytes
            operand = scatter_operand(mine - low_row, values[group])
            yield Operation(info, op, scatter, scale, *span, operand)
