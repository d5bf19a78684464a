"""Rows of a region without a memory node: ``smbox.Rows`` on a numpy array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import output_array, source_array
from smbox.errors import AddressRangeError
from smbox.memory.kernels import KernelCode
from smbox.testing.kernels import changed, native_scale

Array = NDArray[Any]
Change = Callable[[str, Callable[[Array], None]], None]


class ModelRows:
    """Rows selected by an index along axis 0.

    Args:
        read: returns a copy of the region's contents.
        change: runs a function on the contents, atomically, under a name.
        length: number of rows of the region.
        index: integers from 0.
    """

    def __init__(
        self, read: Callable[[], Array], change: Change, length: int, index: Any
    ) -> None:
        self._read = read
        self._change = change
        self._index = np.array(index, np.int64)
        if self._index.size and not 0 <= self._index.min() <= self._index.max() < length:
            raise AddressRangeError("rows outside the region", rows=length)

    def get(self, out: Any = None) -> Array:
        """Return the rows, in ``out`` if given."""
        found: Array = self._read()[self._index]
        if out is None:
            return found
        target = output_array(out, found.dtype, found.shape, may_be_narrower=True)
        target[...] = found
        return target

    def put(self, values: Any) -> None:
        """Replace the rows; of a repeated one the last stays."""

        def put(data: Array) -> None:
            data[self._index] = self._source(data, values)

        self._change("rows.put", put)

    def accumulate(self, values: Any, scale: float = 1.0) -> None:
        """Add ``scale * values``; repeated rows add up."""

        def add(data: Array) -> None:
            factor = native_scale(KernelCode.SUM, dtypes.of(data.dtype), scale)
            for place, row in zip(self._index.flat, self._rows(data, values), strict=True):
                data[place] = changed(KernelCode.SUM, data[place], row, factor)

        self._change("rows.accumulate", add)

    def _rows(self, data: Array, values: Any) -> Array:
        return self._source(data, values).reshape(self._index.size, *data.shape[1:])

    def _source(self, data: Array, values: Any) -> Array:
        shape = (*self._index.shape, *data.shape[1:])
        source = source_array(values, data.dtype, shape, may_be_narrower=True)
        return source.astype(data.dtype, copy=False)
