"""Rows: some rows of a region, picked by their index along axis 0; sparse verbs.

Only the rows that are named travel and change. An index may name a row twice: ``accumulate``
adds all of its values, ``put`` leaves the last one. Atomic are the rows of one stripe together
within one call; a row across two stripes is changed in two commits. Each verb has a twin
``verb_nb``; errors and timeouts are those of region.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.array import as_bytes, output_array, source_array, typed_array
from smbox.errors import AddressRangeError, ConfigError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode, scale_of
from smbox.paths import requests
from smbox.paths.pair import PathPair
from smbox.paths.row_items import RowChange, row_items
from smbox.paths.work import RowsWanted
from smbox.verbs import Extent
from smbox.wire.header import REQUEST_NBYTES_MAX


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
        """Read the rows; each stripe's share of them as it was between two commits.

        Returns:
            ``out`` (filled), or a new array, ``[shape]``.
        """
        self._paths.seconds(timeout_s)  # before anything is begun
        return self._get(out).finish(timeout_s)

    def get_nb(self, out: Any = None) -> Handle[Any]:
        """Begin a ``get``."""
        return self._get(out).begin()

    def _get(self, out: Any) -> Handle[Any]:
        if out is None:
            array = np.empty(self.shape, self.dtype)
        else:
            array = output_array(out, self.dtype, self.shape)
        result = array if out is None else out
        info = self._extent.info
        data = self._paths.data(info)
        if self._places.size == 0:
            work = data.wait_version(info, 0)
        else:
            rows = as_bytes(array).reshape(self._places.size, self._row_nbytes)
            wanted = RowsWanted(self._extent.first, self._row_nbytes, self._places, rows)
            work = data.gather(info, wanted)
        return Handle("get", work, lambda: result, self._paths.timeout_s)

    def put(self, values: Any, *, timeout_s: float | None = None) -> None:
        """Replace the rows by ``values``, ``[shape]``; of a repeated one the last stays."""
        self._paths.seconds(timeout_s)  # before anything is begun
        self._put(values).finish(timeout_s)

    def put_nb(self, values: Any) -> Handle[None]:
        """Begin a ``put``; the values are copied."""
        return self._put(values).begin()

    def _put(self, values: Any) -> Handle[None]:
        return self._change("put", KernelCode.SCATTER_PUT, KernelCode.REPLACE, values, 1)

    def accumulate(
        self, values: Any, scale: float = 1.0, *, timeout_s: float | None = None
    ) -> None:
        """Add ``scale * values``, ``[shape]``, to the rows; repeated ones add up."""
        self._paths.seconds(timeout_s)  # before anything is begun
        self._accumulate(values, scale).finish(timeout_s)

    def accumulate_nb(self, values: Any, scale: float = 1.0) -> Handle[None]:
        """Begin an ``accumulate``; the values are copied."""
        return self._accumulate(values, scale).begin()

    def _accumulate(self, values: Any, scale: float) -> Handle[None]:
        scale_of(KernelCode.SUM, self._extent.info.dtype, scale)
        return self._change("accumulate", KernelCode.SCATTER_SUM, KernelCode.SUM, values, scale)

    def _change(
        self, op: str, kernel: KernelCode, plain: KernelCode, values: Any, scale: float
    ) -> Handle[None]:
        array = source_array(values, self.dtype, self.shape)
        info = self._extent.info
        data = self._paths.data(info)
        if self._places.size == 0:
            work = data.wait_version(info, 0)
        else:
            table = array.reshape(self._places.size, -1).copy()
            change = RowChange(op, kernel, plain, scale, self._places, table)
            work = data.batch(list(row_items(info, self._extent.first, change)))
        return Handle(op, work, requests.nothing, self._paths.timeout_s)

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
