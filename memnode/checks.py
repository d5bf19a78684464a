"""Checks of a request before it touches memory. Pure.

Each function raises the error that the client receives; nothing was changed. The native library
checks the rest: whole elements, and the type and length of an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    RemoteProtocolError,
)
from smbox.memory.kernels import (
    KERNELS,
    OPTIMIZERS,
    KernelCode,
    OptimizerCode,
    check_parameters,
    scale_of,
)
from smbox.memory.layout import Consistency, RegionKind
from smbox.memory.mapped import MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.wire.header import unpack_scale
from smbox.wire.ops import Op

_SCATTERS: Final = frozenset({KernelCode.SCATTER_PUT, KernelCode.SCATTER_SUM})
_PLAIN: Final = frozenset({KernelCode.REPLACE, KernelCode.SUM, KernelCode.MIN, KernelCode.MAX})

ALLOWED_KERNELS: Final[dict[Op, frozenset[KernelCode]]] = {
    Op.PUT: frozenset({KernelCode.REPLACE, KernelCode.SCATTER_PUT}),
    Op.ACCUMULATE: frozenset(KernelCode) - {KernelCode.ELASTIC, KernelCode.SCATTER_PUT},
    Op.ELASTIC: frozenset({KernelCode.ELASTIC}),
    Op.FETCH: frozenset(KernelCode) - _SCATTERS - {KernelCode.SCALE},
    Op.FROM: _PLAIN,
}
"""Kernels that each op may run; the op determines the contents of the reply."""

_BARRIER_KERNELS: Final = frozenset({KernelCode.ARRIVE, KernelCode.WITHDRAW})


def check_range(first: int, nbytes: int, region_nbytes: int, unit: int) -> None:
    """Check the byte range of one request.

    Raises:
        AddressRangeError: it exceeds the region.
        RemoteProtocolError: it is empty, or crosses a multiple of ``unit``, where transfers of
            its op are split.
    """
    if first < 0 or first + nbytes > region_nbytes:
        raise AddressRangeError(
            "the range exceeds its region",
            first=first,
            limit=first + nbytes,
            region_nbytes=region_nbytes,
        )
    if nbytes <= 0 or first // unit != (first + nbytes - 1) // unit:
        raise RemoteProtocolError(
            "a request must lie within one aligned piece of its region",
            first=first,
            nbytes=nbytes,
            piece_nbytes=unit,
        )


def check_aligned(spec: RegionSpec, first: int, nbytes: int) -> None:
    """Check that a range of a region's data begins and ends at element boundaries.

    Raises:
        LayoutMismatchError: it does not.
    """
    itemsize = spec.dtype.itemsize
    if first % itemsize or nbytes % itemsize:
        raise LayoutMismatchError(
            "the range splits an element", name=spec.name, first=first, nbytes=nbytes
        )


def check_span(spec: RegionSpec, first: int, nbytes: int) -> None:
    """Check a byte range of a region's data that may have any length.

    Raises:
        AddressRangeError: it exceeds the region.
        RemoteProtocolError: it is empty.
        LayoutMismatchError: it splits an element.
    """
    check_range(first, nbytes, spec.nbytes, spec.nbytes)
    check_aligned(spec, first, nbytes)


def check_step(
    kernel: int,
    region: MappedRegion,
    siblings: Sequence[MappedRegion],
    parameters: Sequence[float],
) -> None:
    """Check a step of a server-side optimizer: its parameters and the layout of its state.

    Args:
        kernel: number of the optimizer.
        region: the parameters of the model.
        siblings: the regions of the optimizer's state.
        parameters: numbers of the step; the optimizer uses the first few.

    Raises:
        RemoteProtocolError: unknown optimizer.
        ConfigError: a number is out of range.
        LayoutMismatchError: the siblings cannot hold the state.
    """
    if kernel not in set(OptimizerCode):
        raise RemoteProtocolError("unknown optimizer", kernel=kernel)
    code = OptimizerCode(kernel)
    optimizer, own = OPTIMIZERS[code], region.spec
    check_parameters(code, parameters[: len(optimizer.parameters)])
    regions = {each.address: each.spec for each in (region, *siblings)}  # each of them once
    layouts = {(each.dtype, each.shape, each.consistency) for each in regions.values()}
    if (
        len(siblings) != len(optimizer.states)
        or len(regions) != len(siblings) + 1
        or layouts != {(own.dtype, own.shape, Consistency.STRIPE)}
        or own.dtype.kind != "float"
    ):
        raise LayoutMismatchError(
            f"{code.name} needs one region of the parameters' dtype and shape, of consistency"
            f" 'stripe', for each of: {', '.join(optimizer.states)}",
            region=own.name,
            siblings=[each.spec.name for each in siblings],
        )


def check_rows(
    spec: RegionSpec, first: int, places: NDArray[np.int64], row_nbytes: int
) -> None:
    """Check that rows, counted from byte ``first`` of the data, lie in the region.

    Raises:
        AddressRangeError: they do not.
        LayoutMismatchError: they split elements.
    """
    check_aligned(spec, first, row_nbytes)
    rows = (spec.nbytes - first) // row_nbytes
    low, high = int(places.min()), int(places.max())
    if first < 0 or low < 0 or high >= rows:
        raise AddressRangeError(
            "rows outside the region", name=spec.name, low=low, high=high, rows=rows
        )


def check_barrier(code: KernelCode, spec: RegionSpec, nbytes: int) -> None:
    """Raise ConfigError if a barrier kernel changes anything but an entire barrier."""
    if code in _BARRIER_KERNELS and (spec.kind != RegionKind.BARRIER or nbytes != spec.nbytes):
        raise ConfigError("this kernel needs the range of an entire barrier", kernel=code.name)


@lru_cache(maxsize=256)  # clients repeat requests, and the checks take as long as a commit
def checked_kernel(op: Op, kernel: int, dtype: int, raw: bytes) -> KernelCode:
    """Return the kernel of a change whose scale is ``raw``, after a check of both.

    Raises:
        RemoteProtocolError: unknown kernel, or the op may not run it.
        ConfigError: kernel or scale are invalid for these elements.
    """
    if kernel not in ALLOWED_KERNELS[op]:
        raise RemoteProtocolError("this op cannot run this kernel", op=op.name, kernel=kernel)
    code, element = KernelCode(kernel), dtypes.by_code(dtype)
    scale = unpack_scale(raw, element.kind[0]) if KERNELS[code].has_scale else 1
    scale_of(code, element, scale)
    return code
