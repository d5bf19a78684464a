"""The arithmetic of a region: the table of its kernels, which smbox/native/kernels.h computes.

    c the region's elements, x the operand, s the scale

    REPLACE  c = x              MIN  c = min(c, x)      ELASTIC  d = s * (x - c);  c += d
    SUM      c += s * x         MAX  c = max(c, x)

Others are "whole": they see the whole range at once and their operand has its own length.

    COMPARE_SWAP  x = [expected, desired]; c[0] = desired if c[0] == expected
    ARRIVE        x = [member]; a barrier's words: the member joins, the last one opens it
    WITHDRAW      x = [member]; takes back an arrival at the present generation
    SCATTER_PUT   x = rows and their places: see scatter.py
    SCATTER_SUM   x = the same; repeated places add up

Integers wrap around; of bools, SUM and MAX are "or" and MIN is "and"; MIN and MAX pass NaN on.
float16 and bfloat16 regions compute in float32 and round once. The operand of a float32 region
may be float16 or bfloat16: it widens exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np

from smbox.dtypes import DType, Kind
from smbox.errors import ConfigError

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
        kinds: element kinds it is defined for.
        has_scale: takes a scale; all others demand 1.
        is_whole: runs on the whole range at once, with an operand of its own length.
        source_count: elements of a whole kernel's operand; None: as its operand says.
    """

    kinds: frozenset[Kind]
    has_scale: bool = False
    is_whole: bool = False
    source_count: int | None = 0


_SMALL: Final = 1e-30
_LARGE: Final = 1e30
"""Scales between these round to a float32 without over- or underflow."""

_DOUBLE_NBYTES: Final = 8

_ALL: Final = frozenset[Kind](("bool", "int", "uint", "float"))
_WHOLE_NUMBERS: Final = frozenset[Kind](("int", "uint"))
_FLOATS: Final = frozenset[Kind](("float",))
_WORDS: Final = frozenset[Kind](("uint",))

KERNELS: Final[dict[KernelCode, Kernel]] = {
    KernelCode.REPLACE: Kernel(_ALL),
    KernelCode.SUM: Kernel(_ALL, has_scale=True),
    KernelCode.MIN: Kernel(_ALL),
    KernelCode.MAX: Kernel(_ALL),
    KernelCode.ELASTIC: Kernel(_FLOATS, has_scale=True),
    KernelCode.COMPARE_SWAP: Kernel(_WHOLE_NUMBERS, is_whole=True, source_count=2),
    KernelCode.ARRIVE: Kernel(_WORDS, is_whole=True, source_count=1),
    KernelCode.WITHDRAW: Kernel(_WORDS, is_whole=True, source_count=1),
    KernelCode.SCATTER_PUT: Kernel(_ALL, is_whole=True, source_count=None),
    KernelCode.SCATTER_SUM: Kernel(_ALL, has_scale=True, is_whole=True, source_count=None),
}


@lru_cache(maxsize=256)  # callers repeat theirs
def native_scale(code: KernelCode, dtype: DType, scale: Scale) -> float:
    """Return a scale as the native library takes it: a float, or of whole numbers an int64.

    Raises:
        ConfigError: as ``scale_of``.
    """
    factor = scale_of(code, dtype, scale)
    if dtype.kind == "float":
        return float(factor)
    return int(np.asarray(factor).astype(np.int64))


def scale_of(code: KernelCode, dtype: DType, scale: Scale = 1) -> Any:
    """Return ``scale`` as a scalar of the type that the kernel computes in.

    Floats are rounded to that type; whole numbers must fit exactly. Bools, and kernels that
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
    compute = np.float64 if dtype.itemsize == _DOUBLE_NBYTES else np.float32
    if _SMALL < abs(factor) < _LARGE:
        return compute(factor)
    with np.errstate(over="ignore", under="ignore"):
        rounded = compute(factor)
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
