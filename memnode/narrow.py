"""float16 and bfloat16 operands of float32 regions: what a narrow exchange answers.

Computed from the ring's old bytes and the request's operand, with the operations of the
commit's kernel in their order, so that a repeated request gets the same bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.wire.header import Buffer, unpack_scale

FLOAT16: Final = dtypes.by_name("float16").code
_QUIET: Final = np.uint32(0x40)
_ABSOLUTE: Final = np.uint32(0x7FFFFFFF)
_INFINITE: Final = np.uint32(0x7F800000)

Floats = NDArray[np.float32]


def moved(
    old: NDArray[np.uint8], source: Buffer, scale: bytes, operand: int
) -> NDArray[np.uint8]:
    """Return the operand x of an exchange with ``old`` region data c, moved: x - s (x - c)."""
    x = widened(source, operand)
    with np.errstate(all="ignore"):
        d = np.float32(unpack_scale(scale, "f")) * (x - old.view(np.float32))
        return narrowed(x - d, operand)


def widened(source: Buffer, operand: int) -> Floats:
    """Return narrow elements as float32, exactly."""
    if operand == FLOAT16:
        return np.frombuffer(source, np.float16).astype(np.float32)
    return (np.frombuffer(source, np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Floats, operand: int) -> NDArray[np.uint8]:
    """Return float32 elements in the operand's type, rounded to nearest, ties to even."""
    if operand == FLOAT16:
        return values.astype(np.float16).view(np.uint8)
    bits: NDArray[Any] = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    nan = (bits >> 16) | _QUIET
    return (
        np.where((bits & _ABSOLUTE) > _INFINITE, nan, rounded).astype(np.uint16).view(np.uint8)
    )
