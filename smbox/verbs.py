"""What each verb of a region asks of a path: checked values, described as operations."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes, output_array, source_array
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.kernels import KernelCode, scale_of
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink, SumSink
from smbox.paths.work import Operation, Piece, RegionInfo, Sink
from smbox.wire.ops import carried_nbytes

KERNEL_OF: Final = {
    "sum": KernelCode.SUM,
    "min": KernelCode.MIN,
    "max": KernelCode.MAX,
    "replace": KernelCode.REPLACE,
}
"""Kernels by the name that ``accumulate`` and ``fetch_and_op`` take as ``op``."""


_REPLACE: Final = KernelCode.REPLACE  # to look a member up in its class takes longer
_ELASTIC: Final = KernelCode.ELASTIC
_new: Final = partial(tuple.__new__, Operation)
"""Makes an Operation of all its fields, in a third of the time of the class itself."""


class Extent(NamedTuple):
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
    info, dtype, shape, first, limit = extent
    array = source_array(x, dtype, shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    return _new((info, "put", _REPLACE, 1, first, limit, array, operand, None, (), ()))


def accumulate(extent: Extent, x: Any, scale: float, op: str, out: Any = None) -> Operation:
    """Check and describe an ``accumulate``, whose sums go to ``out`` if it is given."""
    operation = _combine(extent, x, scale, op)
    if out is None:
        return operation
    sums = output_array(out, extent.dtype, extent.shape, called="out")
    if op != "sum":
        raise ConfigError('out receives sums: of op="sum" alone', op=op)
    if np.may_share_memory(operation.source, sums):
        raise ConfigError("out must not share memory with x", region=extent.info.name)
    factor = scale_of(KernelCode.SUM, extent.info.dtype, scale)
    line = operation.source.reshape(-1)
    return operation._replace(sink=SumSink(extent.first, line, factor, sums.reshape(-1)))


def _combine(
    extent: Extent, x: Any, scale: float, op: str, sink: Sink | None = None
) -> Operation:
    info, dtype, shape, first, limit = extent
    kernel = kernel_of(info, op, scale)
    array = source_array(x, dtype, shape, may_be_narrower=True)
    operand = 0 if array.dtype is dtype else operand_of(info.dtype, array)
    name = "accumulate" if sink is None else "fetch_and_op"
    return _new((info, name, kernel, scale, first, limit, array, operand, sink, (), ()))


def fetch(extent: Extent, x: Any, op: str, scale: float, old: NDArray[Any]) -> Operation:
    """Check and describe a ``fetch_and_op`` whose old elements go to ``old``."""
    return _combine(extent, x, scale, op, OldSink(extent.first, as_bytes(old)))


def elastic(extent: Extent, x: Any, moving_rate: float, delta: Any) -> Operation:
    """Check and describe an ``elastic``."""
    info, dtype, shape, first, limit = extent
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
    return _new(
        (info, "elastic", _ELASTIC, moving_rate, first, limit, array, operand, sink, (), ())
    )


def shares_of(operation: Operation) -> list[tuple[Piece, Operation]]:
    """Return what a change is to each region of one node that its region consists of."""
    span = operation.first, operation.limit
    pieces = operation.info.pieces(*span)
    if pieces[0].info is operation.info:
        return [(pieces[0], operation)]
    states = [state.pieces(*span) for state in operation.states]
    return [
        (piece, _share(operation, piece, tuple(beside[at].info for beside in states)))
        for at, piece in enumerate(pieces)
    ]


def _share(operation: Operation, piece: Piece, states: tuple[RegionInfo, ...]) -> Operation:
    begin, sink, operand = piece.begin - operation.first, operation.sink, operation.operand
    limit, source = begin + piece.nbytes, as_bytes(operation.source)
    return operation._replace(
        info=piece.info,
        first=piece.first,
        limit=piece.limit,
        source=source[carried_nbytes(begin, operand) : carried_nbytes(limit, operand)],
        sink=None if sink is None else sink.part(begin, limit, piece.first),
        states=states,
    )


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
