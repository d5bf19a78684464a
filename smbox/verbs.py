"""Argument checks of a region's verbs; each function describes one verb as a request."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes, output_array, source_array
from smbox.combining import Chain
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.handle import Handle
from smbox.memory.kernels import ONE, KernelCode, packed_scale, scale_of
from smbox.memory.layout import Consistency
from smbox.paths.pair import PathPair, no_result
from smbox.paths.requests import Operation, Reading, RegionInfo, Signalled, Snapshot
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink, SumSink
from smbox.sync import INT64, Counter
from smbox.wire.header import NO_SCALE, pack_scale

KERNEL_OF: Final = {
    "sum": KernelCode.SUM,
    "min": KernelCode.MIN,
    "max": KernelCode.MAX,
    "replace": KernelCode.REPLACE,
}
"""Kernels by the argument ``op`` of ``accumulate`` and ``fetch_and_op``."""


_REPLACE: Final = KernelCode.REPLACE  # faster than a look-up in the enum
_SUM: Final = KernelCode.SUM
_ELASTIC: Final = KernelCode.ELASTIC
_NUMBERS: Final = (int, float)  # an array that equals 1 is no scale


class Extent:
    """A region, or a slice of one along axis 0; see ``smbox.region.Region``."""

    __slots__ = ("_paths", "dtype", "first", "info", "limit", "nbytes", "shape")

    def __init__(
        self,
        paths: PathPair,
        info: RegionInfo,
        shape: tuple[int, ...] | None = None,
        first: int = 0,
    ) -> None:
        self._paths = paths
        self.info = info
        self.dtype: np.dtype[Any] = info.dtype.numpy
        self.shape = info.shape if shape is None else shape
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.first, self.limit = first, first + self.nbytes


def put(extent: Extent, x: Any) -> Operation:
    """Describe a ``put`` and check its arguments."""
    info, dtype, first = extent.info, extent.dtype, extent.first
    array = source_array(x, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Operation(info, "put", _REPLACE, NO_SCALE, first, extent.limit, array, operand)


def put_signal(paths: PathPair, operation: Operation, signal: Counter) -> Handle[None]:
    """Return an unstarted request: a put and, once it has succeeded, 1 added to a counter.

    A reader that sees the new value of the counter, and then reads the region, finds what was
    put. If both are in one memory, put and signal are one request of one path. Otherwise the
    signal is a second request, which starts when the put is acknowledged. Source: OpenSHMEM
    ``shmem_put_signal``.

    Raises:
        TypeError: the signal is not a counter.
        ConfigError, PeerLostError: the counter's box is closed, or its memory is gone; or this
            thread is inside another call on the counter's node.
    """
    if not isinstance(signal, Counter):
        raise TypeError(f"a signal is a counter, not {type(signal).__name__}")
    info = signal.info
    signal.paths.data(info).check_not_nested()
    one = np.ones((), INT64.numpy)
    addition = Operation(info, "signal", _SUM, ONE["int"], 0, info.nbytes, one)
    if info.node_uuid == operation.info.node_uuid and operation.first < operation.limit:
        both = Signalled(*astuple(operation), signal=addition)
        return Handle("put", paths.work_of(both), no_result, paths.timeout_s)
    first = Handle("put", paths.work_of(operation), no_result, paths.timeout_s)
    return first.then(lambda _: signal.paths.begin(addition))


def put_signal_nb(paths: PathPair, operation: Operation, signal: Counter) -> Handle[None]:
    """Start a put with a signal; wait for both if they are two requests.

    No thread of smbox could start the second request while the caller does something else.
    """
    handle = put_signal(paths, operation, signal)
    if isinstance(handle.work, Chain):
        handle.finish()
        return handle
    return handle.begin()


def accumulate(extent: Extent, x: Any, scale: float, op: str, out: Any = None) -> Operation:
    """Describe an ``accumulate`` and check its arguments; ``out`` may receive the sums."""
    info, dtype = extent.info, extent.dtype
    if op == "sum" and type(scale) in _NUMBERS and scale == 1:
        kernel, packed = _SUM, ONE[info.dtype.kind]
    else:
        kernel, packed = kernel_and_scale(info, op, scale)
    array = source_array(x, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    sink = None if out is None else _sums(extent, array, scale, op, out)
    return Operation(
        info, "accumulate", kernel, packed, extent.first, extent.limit, array, operand, sink
    )


def _sums(extent: Extent, x: NDArray[Any], scale: float, op: str, out: Any) -> SumSink:
    sums = output_array(out, extent.dtype, extent.shape, called="out")
    if op != "sum":
        raise ConfigError('out receives sums: it needs op="sum"', op=op)
    if np.may_share_memory(x, sums):
        raise ConfigError("out must not share memory with x", region=extent.info.name)
    factor = scale_of(_SUM, extent.info.dtype, scale)
    return SumSink(extent.first, x.reshape(-1), factor, sums.reshape(-1))


def fetch(extent: Extent, x: Any, op: str, scale: float, old: NDArray[Any]) -> Operation:
    """Describe a ``fetch_and_op``, check its arguments; ``old`` receives the old elements."""
    sink = OldSink(extent.first, as_bytes(old))
    return replace(accumulate(extent, x, scale, op), op="fetch_and_op", sink=sink)


def elastic(extent: Extent, x: Any, moving_rate: float, delta: Any) -> Operation:
    """Describe an ``elastic`` and check its arguments."""
    info, dtype, shape, first = extent.info, extent.dtype, extent.shape, extent.first
    rate = scale_of(_ELASTIC, info.dtype, moving_rate)
    packed = pack_scale(rate, "f")
    sink: MoveSink | DeltaSink
    if delta is None:
        array = output_array(x, dtype, shape, called="x", may_be_narrower=True)
        flat = array if array.ndim == 1 else array.reshape(-1)
        sink = MoveSink(first, flat, rate, dtype.itemsize)
    else:
        array = source_array(x, dtype, shape, may_be_narrower=True)
        out = output_array(delta, dtype, shape, called="delta")
        if np.may_share_memory(array, out):
            raise ConfigError("delta must not share memory with x", region=info.name)
        sink = DeltaSink(first, array.reshape(-1), rate, out.reshape(-1))
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Operation(
        info, "elastic", _ELASTIC, packed, first, extent.limit, array, operand, sink
    )


def get(extent: Extent, out: Any) -> Reading:
    """Describe a ``get`` into ``out`` (None: a new array) and check its arguments."""
    info, dtype = extent.info, extent.dtype
    if out is None:
        return Reading(info, extent.first, extent.limit, np.empty(extent.shape, dtype))
    array = output_array(out, dtype, extent.shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return Reading(info, extent.first, extent.limit, array, operand)


def snapshot(extent: Extent, out: Any) -> Snapshot:
    """Describe a ``get`` with ``snapshot=True`` and check its arguments.

    Raises:
        ConfigError: the region has no locks.
    """
    info, first, limit = extent.info, extent.first, extent.limit
    array = np.empty(extent.shape, extent.dtype) if out is None else out
    array = output_array(array, extent.dtype, extent.shape)
    if info.consistency == Consistency.NONE and first < limit:
        raise ConfigError(
            "a snapshot needs locks, and a region of consistency 'none' has none: get"
            " without snapshot",
            region=info.name,
        )
    return Snapshot(info, first, limit, array)


def kernel_and_scale(info: RegionInfo, op: str, scale: float) -> tuple[KernelCode, bytes]:
    """Return the kernel of an ``op``, and its scale as an Operation has it.

    Raises:
        ConfigError: no kernel has this name, or the scale is invalid for it.
    """
    kernel = KERNEL_OF.get(op)
    if kernel is None:
        raise ConfigError(f"op is one of {', '.join(KERNEL_OF)}", op=op)
    return kernel, packed_scale(kernel, info.dtype, scale)


def operand_of(dtype: DType, array: NDArray[Any]) -> int:
    """Return the dtype code of an array narrower than the region's elements; else 0."""
    return 0 if array.dtype.itemsize == dtype.itemsize else dtypes.of(array.dtype).code
