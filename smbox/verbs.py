"""What each verb of a region asks of a path: checked values, described as requests."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes, output_array, source_array
from smbox.dtypes import DType
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode, scale_of
from smbox.paths import requests
from smbox.paths.base import Operation, RegionInfo
from smbox.paths.pair import PathPair
from smbox.paths.requests import Request
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink

KERNEL_OF: Final = {
    "sum": KernelCode.SUM,
    "min": KernelCode.MIN,
    "max": KernelCode.MAX,
    "replace": KernelCode.REPLACE,
}
"""Kernels by the name that ``accumulate`` and ``fetch_and_op`` take as ``op``."""


class Extent(NamedTuple):
    """A region, or a slice of one along axis 0.

    Attributes:
        info: what the whole region is.
        shape: of the slice.
        first: byte of the region's data where it begins.
        limit: byte behind it.
    """

    info: RegionInfo
    shape: tuple[int, ...]
    first: int
    limit: int


def put(extent: Extent, x: Any) -> Request[None]:
    """Check and describe a ``put``."""
    return Request(extent.info, _operation(extent, "put", KernelCode.REPLACE, x), None, None)


def accumulate(extent: Extent, x: Any, scale: float, op: str) -> Request[None]:
    """Check and describe an ``accumulate``."""
    kernel = kernel_of(extent.info, op, scale)
    operation = _operation(extent, "accumulate", kernel, x, scale)
    return Request(extent.info, operation, None, None)


def fetch(extent: Extent, x: Any, op: str, scale: float) -> Request[NDArray[Any]]:
    """Check and describe a ``fetch_and_op``."""
    kernel = kernel_of(extent.info, op, scale)
    operation = _operation(extent, "fetch_and_op", kernel, x, scale)
    old = np.empty(extent.shape, extent.info.dtype.numpy)
    return Request(extent.info, operation, OldSink(extent.first, as_bytes(old)), old)


def elastic(extent: Extent, x: Any, moving_rate: float, delta: Any) -> Request[Any]:
    """Check and describe an ``elastic``."""
    info, shape = extent.info, extent.shape
    rate = scale_of(KernelCode.ELASTIC, info.dtype, moving_rate)
    sink: MoveSink | DeltaSink
    if delta is None:
        array = output_array(x, info.dtype.numpy, shape, called="x", may_be_narrower=True)
        sink = MoveSink(extent.first, array.reshape(-1), rate, info.dtype.itemsize)
    else:
        array = source_array(x, info.dtype.numpy, shape, may_be_narrower=True)
        array = array.astype(info.dtype.numpy, copy=False)  # d comes in the region's type
        out = output_array(delta, info.dtype.numpy, shape, called="delta")
        if np.may_share_memory(array, out):
            raise ConfigError("delta must not share memory with x", region=info.name)
        sink = DeltaSink(extent.first, array.reshape(-1), rate, out.reshape(-1))
    operation = _operation(extent, "elastic", KernelCode.ELASTIC, array, moving_rate)
    return Request(info, operation, sink, delta)


def begin_from(
    paths: PathPair, extent: Extent, source: Extent, scale: float, op: str
) -> Handle[None]:
    """Check and begin an ``accumulate_from``.

    Raises:
        LayoutMismatchError: another dtype or size.
        ConfigError: they lie at two nodes.
    """
    kernel = kernel_of(extent.info, op, scale)
    if source.info.node_uuid != extent.info.node_uuid:
        raise ConfigError("both regions lie at one node", source=source.info.name)
    if (source.info.dtype, source.limit - source.first) != (
        extent.info.dtype,
        extent.limit - extent.first,
    ):
        raise LayoutMismatchError(
            "both regions need the same dtype and size",
            region=extent.info.name,
            source=source.info.name,
        )
    nothing = np.empty(0, np.uint8)
    operation = Operation("accumulate_from", kernel, scale, extent.first, extent.limit, nothing)
    data = paths.data(extent.info)
    if extent.first == extent.limit:
        work = data.wait_version(extent.info, 0)
    else:
        work = data.change_from(extent.info, operation, source.info, source.first)
    return requests.handle_of(paths, operation.op, work, requests.nothing)


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


def _operation(
    extent: Extent, op: str, kernel: KernelCode, x: Any, scale: float = 1
) -> Operation:
    dtype = extent.info.dtype
    array = source_array(x, dtype.numpy, extent.shape, may_be_narrower=True)
    source, operand = as_bytes(array), operand_of(dtype, array)
    return Operation(op, kernel, scale, extent.first, extent.limit, source, operand)


def operand_of(dtype: DType, array: NDArray[Any]) -> int:
    """Return the dtype code of an array that is narrower than a region's elements; else 0."""
    return 0 if array.dtype.itemsize == dtype.itemsize else dtypes.of(array.dtype).code
