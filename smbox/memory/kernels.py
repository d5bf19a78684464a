"""The arithmetic of a region: one table of named kernels, in numpy.

A kernel changes the bytes of one range in place; commit.py locks, journals and decides. The
compiled twins in compiled.py give the same bits. float16 and bfloat16 compute in their own
type, step by step, so that a client can repeat what the memory did.

    c the region's elements, x the source, s the scale

    REPLACE  c = x              MIN  c = min(c, x)      ELASTIC  c += s * (x - c)
    SUM      c += s * x         MAX  c = max(c, x)

Others are "whole": they see the whole range at once and their source has its own length.

    COMPARE_SWAP  x = [expected, desired]; c[0] = desired if c[0] == expected
    ARRIVE        x = [member]; a barrier's words: the member joins, the last one opens it
    WITHDRAW      x = [member]; takes back an arrival at the present generation
    SCATTER_PUT   x = rows and their places: see scatter.py
    SCATTER_SUM   x = the same; repeated places add up

Integers wrap around; of bools, SUM and MAX are "or" and MIN is "and"; MIN and MAX pass NaN on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.dtypes import DType, Kind
from smbox.errors import ConfigError
from smbox.memory.kept_delta import KeptDelta
from smbox.memory.quiet import quietly
from smbox.memory.scatter import scatter_put, scatter_sum

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Scale = int | float | np.generic


class KernelCode(IntEnum):
    """Number of a kernel in journals and messages; never reused."""

    __hash__ = int.__hash__  # Enum's own is Python code

    REPLACE = 1
    SUM = 2
    MIN = 3
    MAX = 4
    ELASTIC = 5
    COMPARE_SWAP = 6
    ARRIVE = 7
    WITHDRAW = 8
    SCATTER_PUT = 9
    SCATTER_SUM = 10


class BarrierWord:
    """Words of a barrier region; the members that have arrived follow them."""

    GENERATION: Final = 0
    ARRIVED: Final = 1
    PARTIES: Final = 2
    MEMBERS: Final = 3


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row of the table.

    Attributes:
        run: ``run(data, source, scale)`` changes the typed view ``data`` in place, and returns
            what it added, of ELASTIC only.
        kinds: element kinds it is defined for.
        has_scale: takes a scale; all others demand 1.
        is_whole: runs on the whole range at once, with a source of its own length.
        source_count: elements of a whole kernel's source; None: as its operand says.
    """

    run: Callable[[Array, Array, Any], Array | None]
    kinds: frozenset[Kind]
    has_scale: bool = False
    is_whole: bool = False
    source_count: int | None = 0


def _replace(data: Array, source: Array, _scale: Any) -> None:
    np.copyto(data, source)


def _sum(data: Array, source: Array, scale: Any) -> None:
    np.add(data, source if scale == 1 else np.multiply(source, scale), out=data)


def _min(data: Array, source: Array, _scale: Any) -> None:
    np.minimum(data, source, out=data)


def _max(data: Array, source: Array, _scale: Any) -> None:
    np.maximum(data, source, out=data)


def _elastic(data: Array, source: Array, scale: Any) -> Array:
    delta = _scaled_difference(source, data, scale)
    np.add(data, delta, out=data)
    return delta


def _scaled_difference(source: Array, data: Array, scale: Any) -> Array:
    delta: Array = np.subtract(source, data)
    np.multiply(delta, scale, out=delta)
    return delta


def _compare_swap(data: Array, source: Array, _scale: Any) -> None:
    if data[0] == source[0]:
        data[0] = source[1]


def _arrive(data: Array, source: Array, _scale: Any) -> None:
    arrived, parties = int(data[BarrierWord.ARRIVED]), int(data[BarrierWord.PARTIES])
    members = data[BarrierWord.MEMBERS : BarrierWord.MEMBERS + parties]
    if source[0] in members[:arrived]:
        return
    members[arrived] = source[0]
    arrived += 1
    if arrived == parties:
        data[BarrierWord.GENERATION] += np.uint64(1)
        arrived = 0
    data[BarrierWord.ARRIVED] = arrived


def _withdraw(data: Array, source: Array, _scale: Any) -> None:
    arrived = int(data[BarrierWord.ARRIVED])
    members = data[BarrierWord.MEMBERS : BarrierWord.MEMBERS + arrived]
    (found,) = np.nonzero(members == source[0])
    if found.size:
        members[found[0]] = members[-1]
        data[BarrierWord.ARRIVED] = arrived - 1


_SAFE_ITEMSIZE: Final = 4
_SMALL: Final = 1e-30
_LARGE: Final = 1e30
"""Scales between these round to a float of that size without over- or underflow."""

_ALL: Final = frozenset[Kind](("bool", "int", "uint", "float"))
_WHOLE_NUMBERS: Final = frozenset[Kind](("int", "uint"))

KERNELS: Final[dict[KernelCode, Kernel]] = {
    KernelCode.REPLACE: Kernel(_replace, _ALL),
    KernelCode.SUM: Kernel(_sum, _ALL, has_scale=True),
    KernelCode.MIN: Kernel(_min, _ALL),
    KernelCode.MAX: Kernel(_max, _ALL),
    KernelCode.ELASTIC: Kernel(_elastic, frozenset[Kind](("float",)), has_scale=True),
    KernelCode.COMPARE_SWAP: Kernel(
        _compare_swap, _WHOLE_NUMBERS, is_whole=True, source_count=2
    ),
    KernelCode.ARRIVE: Kernel(
        _arrive, frozenset[Kind](("uint",)), is_whole=True, source_count=1
    ),
    KernelCode.WITHDRAW: Kernel(
        _withdraw, frozenset[Kind](("uint",)), is_whole=True, source_count=1
    ),
    KernelCode.SCATTER_PUT: Kernel(scatter_put, _ALL, is_whole=True, source_count=None),
    KernelCode.SCATTER_SUM: Kernel(
        scatter_sum, _ALL, has_scale=True, is_whole=True, source_count=None
    ),
}


def elastic_delta(source: Array, data: Array, scale: Any) -> Array:
    """Return ``scale * (source - data)``, rounded as the ELASTIC kernel rounds it.

    The worker's half of an elastic exchange: with the old contents as ``data`` this is, bit
    for bit, what the memory added.

    Args:
        source: the worker's elements, any shape.
        data: the region's elements before the exchange; shape and dtype of ``source``.
        scale: the moving rate, from ``scale_of``.
    """
    return quietly(_scaled_difference, source, data, scale)


def scale_of(code: KernelCode, dtype: DType, scale: Scale = 1) -> Any:
    """Return ``scale`` as a scalar of the region's element type.

    Floats are rounded to the type; whole numbers must fit exactly. Bools, and kernels that
    take no scale, demand 1. Also tells whether the kernel is defined for the type at all.

    Raises:
        ConfigError: the kernel or the scale makes no sense for these elements.
    """
    kernel = KERNELS[code]
    if dtype.kind not in kernel.kinds:
        raise ConfigError("not defined for these elements", kernel=code.name, dtype=dtype.name)
    if dtype.kind == "bool" or not kernel.has_scale:
        if scale != 1:
            raise ConfigError("takes no scale", kernel=code.name, dtype=dtype.name, scale=scale)
        return dtype.numpy.type(1)
    try:
        if dtype.kind == "float":
            return _float_scale(dtype, scale)
        return _whole_scale(dtype, scale)
    except (TypeError, OverflowError) as error:
        raise ConfigError("scale is no number that fits", dtype=dtype.name) from error


def _float_scale(dtype: DType, scale: Scale) -> Any:
    factor = math.ldexp(scale, 0)  # float() would also read a text
    if dtype.itemsize >= _SAFE_ITEMSIZE and _SMALL < abs(factor) < _LARGE:
        return dtype.numpy.type(factor)
    with np.errstate(over="ignore", under="ignore"):
        rounded = dtype.numpy.type(factor)
    if not math.isfinite(rounded):
        raise ConfigError("scale must be finite", scale=scale, dtype=dtype.name)
    return rounded


def _whole_scale(dtype: DType, scale: Scale) -> Any:
    limits = np.iinfo(dtype.numpy)
    whole = int(scale) if math.isfinite(scale) else limits.max + 1
    if whole != scale or not limits.min <= whole <= limits.max:
        raise ConfigError(
            "scale must be a whole number of the region's type", scale=scale, dtype=dtype.name
        )
    return dtype.numpy.type(whole)


def run_kernel(
    code: KernelCode, data: Array, source: Array, scale: Any, delta: KeptDelta | None = None
) -> None:
    """Run a kernel on typed views of one range.

    Args:
        code: which kernel; ``scale_of`` has accepted it for the type.
        data: the region's elements, one axis; changed in place.
        source: as many elements of the same type, or what a whole kernel's source holds.
        scale: from ``scale_of``.
        delta: of ELASTIC, keeps what is added.

    Raises:
        ConfigError: the source has another length than the kernel needs; nothing changed.
    """
    kernel = KERNELS[code]
    wanted = kernel.source_count if kernel.is_whole else data.size
    if wanted is not None and source.size != wanted:
        raise ConfigError(
            "source has the wrong length", kernel=code.name, elements=source.size, wanted=wanted
        )
    if delta is not None:
        delta.keep(None)
    added = quietly(kernel.run, data, source, scale)
    if delta is not None:
        delta.keep(added)


def journaled(  # noqa: PLR0913, PLR0917 - kernels know of no Change, only of its parts
    code: KernelCode,
    data: Bytes,
    source: Array,
    old: Bytes,
    dtype: DType,
    scale: Scale,
    progress: NDArray[np.uint64],
    progress_at: int,
    delta: KeptDelta | None = None,
) -> None:
    """Save the old bytes, publish how many, run the kernel; in one block.

    Args:
        code: which kernel.
        data: the range inside the region's stripe; changed in place.
        source: contiguous elements or bytes; see ``run_kernel``.
        old: at least ``data.nbytes`` bytes of journal; receives the old bytes.
        dtype: the region's element type; ``data`` holds whole elements.
        scale: a number, see ``scale_of``.
        progress: words of the journal slot.
        progress_at: index of the word that tells how many bytes of ``old`` are valid.
        delta: see ``run_kernel``.

    Raises:
        ConfigError: kernel, scale or source do not fit; the bytes of ``data`` are unchanged.
    """
    factor = scale_of(code, dtype, scale)
    np.copyto(old[: data.nbytes], data)
    progress[progress_at] = data.nbytes
    elements = dtype.numpy
    run_kernel(code, data.view(elements), as_bytes(source).view(elements), factor, delta)
