"""What a request must satisfy before it may touch memory. Pure: values in, errors out.

Every function raises the error that the client will see; nothing has changed then.
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
    native_scale,
)
from smbox.memory.layout import Consistency, RegionKind
from smbox.memory.mapped import MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.wire.header import REQUEST_NBYTES_MAX, unpack_scale
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
"""Kernels that each op may run: an op also says what its reply carries."""

KERNEL_OF: Final = {int(code): code for code in KernelCode}

_BARRIER_KERNELS: Final = frozenset({KernelCode.ARRIVE, KernelCode.WITHDRAW})


def check_range(
    first: int, nbytes: int, region_nbytes: int, unit: int = REQUEST_NBYTES_MAX
) -> None:
    """Check a byte range of a region's data, as one request may cover it.

    Raises:
        AddressRangeError: it leaves the region.
        RemoteProtocolError: empty, or across the multiples of ``unit`` where requests of its
            op are cut.
    """
    if first < 0 or first + nbytes > region_nbytes:
        raise AddressRangeError(
            "the range leaves its region",
            first=first,
            limit=first + nbytes,
            region_nbytes=region_nbytes,
        )
    if nbytes <= 0 or first // unit != (first + nbytes - 1) // unit:
        raise RemoteProtocolError(
            "a request covers part of one aligned piece of its region",
            first=first,
            nbytes=nbytes,
            piece_nbytes=unit,
        )


def check_whole(spec: RegionSpec, first: int, nbytes: int) -> None:
    """Check that a range of a region's data begins and ends at elements.

    Raises:
        LayoutMismatchError: it cuts one.
    """
    itemsize = spec.dtype.itemsize
    if first % itemsize or nbytes % itemsize:
        raise LayoutMismatchError(
            "the range cuts an element", name=spec.name, first=first, nbytes=nbytes
        )


def check_span(spec: RegionSpec, first: int, nbytes: int) -> None:
    """Check a byte range of a region's data that lies at the node already, of any length.

    Raises:
        AddressRangeError: it leaves the region.
        RemoteProtocolError: it is empty.
        LayoutMismatchError: it cuts an element.
    """
    check_range(first, nbytes, spec.nbytes, unit=spec.nbytes)
    check_whole(spec, first, nbytes)


def check_source(spec: RegionSpec, source: RegionSpec, begin: int, nbytes: int) -> None:
    """Check that a range of another region is the operand of one of ``spec``.

    Raises:
        LayoutMismatchError: it is of another dtype.
        SmboxError: as ``check_span``.
    """
    if source.dtype != spec.dtype:
        raise LayoutMismatchError(
            "both regions need the same dtype",
            name=source.name,
            dtype=source.dtype.name,
            wanted=spec.dtype.name,
        )
    check_span(source, begin, nbytes)


def check_step(
    kernel: int,
    region: MappedRegion,
    siblings: Sequence[MappedRegion],
    parameters: Sequence[float],
) -> OptimizerCode:
    """Check a step of a server-side optimizer: its parameters, and that its state fits.

    Args:
        kernel: number of the optimizer.
        region: the parameters.
        siblings: its state.
        parameters: the numbers of the step; the optimizer uses the first few.

    Raises:
        RemoteProtocolError: there is no such optimizer.
        ConfigError: a number is out of range.
        LayoutMismatchError: the siblings cannot hold the state.
    """
    if kernel not in set(OptimizerCode):
        raise RemoteProtocolError("no such optimizer", kernel=kernel)
    code = OptimizerCode(kernel)
    wanted, own = OPTIMIZERS[code], region.spec
    check_parameters(code, parameters[: len(wanted.parameters)])
    layouts = {(each.spec.dtype, each.spec.shape, each.spec.consistency) for each in siblings}
    distinct = {region.address, *(each.address for each in siblings)}
    if (
        len(siblings) != len(wanted.states)
        or layouts != {(own.dtype, own.shape, Consistency.STRIPE)}
        or own.consistency != Consistency.STRIPE
        or own.dtype.kind != "float"
        or len(distinct) != len(siblings) + 1
    ):
        raise LayoutMismatchError(
            f"{code.name} needs one region of the parameters' dtype and shape, of consistency"
            f" 'stripe', for each of: {', '.join(wanted.states)}",
            region=own.name,
            siblings=[each.spec.name for each in siblings],
        )
    return code


def check_operand(operand: int, spec: RegionSpec, first: int = 0, nbytes: int = 0) -> None:
    """Check that elements of the operand's type may travel to or from a region.

    Args:
        operand: its dtype code; 0: the region's type.
        spec: the region.
        first: byte of the region's data at which the range, or row 0, begins.
        nbytes: of the range, or of a row.

    Raises:
        LayoutMismatchError: they may not: only those of a float32 region may be narrower, and
            only whole ones.
    """
    if not operand:
        return
    if spec.dtype.name != "float32":
        raise LayoutMismatchError(
            "only a float32 region takes narrower operands",
            name=spec.name,
            dtype=spec.dtype.name,
            operand=dtypes.by_code(operand).name,
        )
    check_whole(spec, first, nbytes)


def check_places(
    spec: RegionSpec, first: int, places: NDArray[np.int64], row_nbytes: int
) -> None:
    """Check that all rows lie in the region, from byte ``first`` of its data on.

    Raises:
        AddressRangeError: they do not.
        LayoutMismatchError: they cut elements.
    """
    check_whole(spec, first, row_nbytes)
    rows = (spec.nbytes - first) // row_nbytes
    low, high = int(places.min()), int(places.max())
    if first < 0 or low < 0 or high >= rows:
        raise AddressRangeError(
            "rows outside the region", name=spec.name, low=low, high=high, rows=rows
        )


def check_elements(code: KernelCode, spec: RegionSpec, first: int, nbytes: int) -> None:
    """Check that a change runs on whole elements, and a barrier's on the whole barrier.

    That its source fits, the codec and the native library check.

    Raises:
        LayoutMismatchError: the range cuts an element.
        ConfigError: the kernel does not fit the region.
    """
    check_whole(spec, first, nbytes)
    if code in _BARRIER_KERNELS and (spec.kind != RegionKind.BARRIER or nbytes != spec.nbytes):
        raise ConfigError("this kernel runs on a whole barrier", kernel=code.name)


@lru_cache(maxsize=256)  # clients repeat theirs, and to be thorough takes as long as a commit
def terms_of(op: Op, kernel: int, dtype_code: int, raw: bytes) -> tuple[KernelCode, float]:
    """Return a change's kernel, and its scale as the native library takes it.

    Raises:
        RemoteProtocolError: there is no kernel of this number, or the op may not run it.
        ConfigError: kernel or scale make no sense for these elements.
    """
    code = KERNEL_OF.get(kernel)
    if code is None or code not in ALLOWED_KERNELS[op]:
        raise RemoteProtocolError("this op has no such kernel", op=op.name, kernel=kernel)
    dtype = dtypes.by_code(dtype_code)
    scale = unpack_scale(raw, dtype.kind[0]) if KERNELS[code].has_scale else 1
    return code, native_scale(code, dtype, scale)
