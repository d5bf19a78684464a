"""What each verb of a region asks of a path: checked values, described as operations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes, output_array, source_array
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.kernels import KernelCode, scale_of
from smbox.memory.layout import Consistency
from smbox.paths.readings import Reading, Snapshot
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink, SumSink
from smbox.paths.work import Operation, RegionInfo

KERNEL_OF: Final = {
    "sum": KernelCode.SUM,
    "min": KernelCode.MIN,
    "max": KernelCode.MAX,
    "replace": KernelCode.REPLACE,
}
"""Kernels by the name that ``accumulate`` and ``fetch_and_op`` take as ``op``."""


_REPLACE: Final = KernelCode.REPLACE  # to look a member up in its class takes longer
_SUM: Final = KernelCode.SUM
_ELASTIC: Final = KernelCode.ELASTIC


class Extent(Struct, frozen=True, eq=False):
    """A region, or a slice of one along axis 0.

    Attributes:
        info: what the whole region is.
        dtype: numpy's.
        shape: of the slice.
        first: byte of the region's data where it begins.
        limit: byte behind it.
    """

    info: RegionInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    first: int
    limit: int


def put(extent: Extent, x: Any) -> Operation:
    """Check and describe a ``put``."""
    info, dtype = extent.info, extent.dtype
    array = source_array(x, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Operation(info, "put", _REPLACE, 1, extent.first, extent.limit, array, operand)


def accumulate(extent: Extent, x: Any, scale: float, op: str, out: Any = None) -> Operation:
    """Check and describe an ``accumulate``, whose sums go to ``out`` if it is given."""
    info, dtype = extent.info, extent.dtype
    kernel = _SUM if op == "sum" and scale == 1 else kernel_of(info, op, scale)
    array = source_array(x, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    sink = None if out is None else _sums(extent, array, scale, op, out)
    return Operation(
        info, "accumulate", kernel, scale, extent.first, extent.limit, array, operand, sink
    )


def _sums(extent: Extent, x: NDArray[Any], scale: float, op: str, out: Any) -> SumSink:
    sums = output_array(out, extent.dtype, extent.shape, called="out")
    if op != "sum":
        raise ConfigError('out receives sums: of op="sum" alone', op=op)
    if np.may_share_memory(x, sums):
        raise ConfigError("out must not share memory with x", region=extent.info.name)
    factor = scale_of(_SUM, extent.info.dtype, scale)
    return SumSink(extent.first, x.reshape(-1), factor, sums.reshape(-1))


def fetch(extent: Extent, x: Any, op: str, scale: float, old: NDArray[Any]) -> Operation:
    """Check and describe a ``fetch_and_op`` whose old elements go to ``old``."""
    sink = OldSink(extent.first, as_bytes(old))
    return replace(accumulate(extent, x, scale, op), op="fetch_and_op", sink=sink)


def elastic(extent: Extent, x: Any, moving_rate: float, delta: Any) -> Operation:
    """Check and describe an ``elastic``."""
    info, dtype, shape, first = extent.info, extent.dtype, extent.shape, extent.first
    rate = scale_of(_ELASTIC, info.dtype, moving_rate)
    sink: MoveSink | DeltaSink
    if delta is None:
        array = output_array(x, dtype, shape, called="x", may_be_narrower=True)
        line = array if array.ndim == 1 else array.reshape(-1)
        sink = MoveSink(first, line, rate, dtype.itemsize)
    else:
        array = source_array(x, dtype, shape, may_be_narrower=True)
        out = output_array(delta, dtype, shape, called="delta")
        if np.may_share_memory(array, out):
            raise ConfigError("delta must not share memory with x", region=info.name)
        sink = DeltaSink(first, array.reshape(-1), rate, out.reshape(-1))
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Operation(
        info, "elastic", _ELASTIC, moving_rate, first, extent.limit, array, operand, sink
    )


def get(extent: Extent, out: Any) -> Reading:
    """Check and describe a ``get`` into ``out``; None: into a new array."""
    info, dtype = extent.info, extent.dtype
    if out is None:
        return Reading(info, extent.first, extent.limit, np.empty(extent.shape, dtype))
    array = output_array(out, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Reading(info, extent.first, extent.limit, array, operand)


def snapshot(extent: Extent, out: Any) -> Snapshot:
    """Check and describe a ``get`` of one moment, as ``get``.

    Raises:
        ConfigError: the region has no locks.
    """
    info, first, limit = extent.info, extent.first, extent.limit
    array = np.empty(extent.shape, extent.dtype) if out is None else out
    array = output_array(array, extent.dtype, extent.shape)
    if info.consistency == Consistency.NONE and first < limit:
        raise ConfigError("a region without locks has no snapshots", region=info.name)
    return Snapshot(info, first, limit, array)


def kernel_of(info: RegionInfo, op: str, scale: float) -> KernelCode:
    """Return the kernel of an ``op``.

    Raises:
        ConfigError: there is none, or the scale makes no sense for it.
    """
    kernel = KERNEL_OF.get(op)
    if kernel is None:
        raise ConfigError(f"op is one of {', '.join(KERNEL_OF)}", op=op)
    if scale != 1:
        scale_of(kernel, info.dtype, scale)
    return kernel


def operand_of(dtype: DType, array: NDArray[Any]) -> int:
    """Return the dtype code of an array that is narrower than a region's elements; else 0."""
    return 0 if array.dtype.itemsize == dtype.itemsize else dtypes.of(array.dtype).code
