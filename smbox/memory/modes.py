"""What the compiled kernels are told, in numbers: which they are, and their operands. No numba.

A mode is a kernel for an element type, so that one compiled function serves them all. Modes
stand in no journal and in no message, and may change with any release.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import BYTE, as_bytes
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.kernels import KernelCode, Scale, scale_of


class Mode(IntEnum):
    """A kernel for an element type; NUMPY has no compiled twin."""

    NUMPY = 0
    REPLACE = 1
    SUM_FLOAT32 = 2
    SUM_FLOAT64 = 3
    SUM_INT64 = 4  # and uint64: the same bits
    ELASTIC_FLOAT32 = 5
    ELASTIC_FLOAT64 = 6


class Back(IntEnum):
    """What a compiled run of commits hands its caller, stripe by stripe."""

    NONE = 0
    MOVED = 1  # of ELASTIC: the caller's x -= d
    DELTA = 2  # of ELASTIC: d itself
    OLD = 3  # the old bytes


_TYPED: Final = {
    (KernelCode.SUM, "float32"): Mode.SUM_FLOAT32,
    (KernelCode.SUM, "float64"): Mode.SUM_FLOAT64,
    (KernelCode.SUM, "int64"): Mode.SUM_INT64,
    (KernelCode.SUM, "uint64"): Mode.SUM_INT64,
    (KernelCode.ELASTIC, "float32"): Mode.ELASTIC_FLOAT32,
    (KernelCode.ELASTIC, "float64"): Mode.ELASTIC_FLOAT64,
}
_CODE_BITS: Final = 8


def _key(code: KernelCode, dtype: DType) -> int:
    return code << _CODE_BITS | dtype.code  # hashing two enums would cost more than a get


_MODES: Final[dict[int, int]] = {
    **{_key(KernelCode.REPLACE, dtype): int(Mode.REPLACE) for dtype in dtypes.TABLE},
    **{_key(code, dtypes.by_name(name)): int(mode) for (code, name), mode in _TYPED.items()},
}
_NONE: Final = int(Mode.NUMPY)
_SCALED: Final = {
    int(Mode.SUM_FLOAT32),
    int(Mode.SUM_FLOAT64),
    int(Mode.ELASTIC_FLOAT32),
    int(Mode.ELASTIC_FLOAT64),
}
_NUMBERS: Final = (int, float)  # a union would be made anew for each look
SCALE_SAFE: Final = 1e30
"""Scales below are finite in float32 too, to which the kernels round."""


def mode_of(code: KernelCode, dtype: DType) -> int:
    """Return the ``Mode`` of a kernel for an element type, as a plain number."""
    return _MODES.get(_key(code, dtype), _NONE)


def factors(code: KernelCode, dtype: DType, scale: Scale) -> tuple[float, int]:
    """Return the scale as compiled kernels take it: a float, and an int64 for whole numbers.

    The float need not be rounded to float32 yet: the kernels do.

    Raises:
        ConfigError: as ``kernels.scale_of``.
    """
    if isinstance(scale, _NUMBERS) and scale == 1:
        return 1.0, 1
    if (
        type(scale) is float
        and -SCALE_SAFE < scale < SCALE_SAFE
        and mode_of(code, dtype) in _SCALED
    ):
        return scale, 1  # the usual case, without what makes scale_of thorough and slow
    factor = scale_of(code, dtype, scale)
    if dtype.kind == "float":
        return float(factor), 1
    return 1.0, int(np.asarray(factor).astype(np.int64))


class Terms(NamedTuple):
    """A kernel for an element type, with its scale, as compiled code takes them.

    Attributes:
        mode: a value of ``Mode``.
        kernel: a value of ``KernelCode``, for the journal.
        scale: see ``factors``.
        whole: see ``factors``.
    """

    mode: int
    kernel: int
    scale: float
    whole: int


def terms_of(code: KernelCode, dtype: DType, scale: Scale) -> Terms | None:
    """Return the terms of a kernel and its scale; None: it has no compiled twin.

    Raises:
        ConfigError: as ``kernels.scale_of``.
    """
    mode = mode_of(code, dtype)
    if mode == _NONE:
        return None
    return Terms(mode, int(code), *factors(code, dtype, scale))


def flat(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View an array's bytes, ``u8[nbytes]``, without copying.

    Raises:
        ConfigError: the array is not C-contiguous.
    """
    if not array.flags.c_contiguous:
        raise ConfigError("the array must be C-contiguous", strides=array.strides)
    return array if array.dtype is BYTE and array.ndim == 1 else as_bytes(array)
