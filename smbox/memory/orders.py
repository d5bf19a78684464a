"""Orders to the native library: the structs of smbox/native/native.h, filled from Python.

Addresses of arrays are plain numbers: the caller keeps the arrays alive.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from numpy.typing import NDArray

ORDER_WORDS: Final = 21
ORDER_NBYTES: Final = 8 * ORDER_WORDS
READING_NBYTES: Final = 88

_EXTENTS: Final = struct.Struct("<5Q")
write_order = struct.Struct("<3Q40s4Q8s5Q24x").pack_into
"""Write an order.

The arguments are a buffer, the byte where the order begins, and the fields of ``struct order``:
kernel, operand, output, the result of ``extents_of``, first, limit, address and bytes of the
source, scale as bytes, parameters, output_to, channel, number and done. A bound method saves a
call.
"""
write_reading = struct.Struct("<9Q16x").pack_into
write_range_reading = struct.Struct("<3Q24x3Q16x").pack_into
"""Write a ``struct reading`` up to ``done``: of rows, or of a range (no fields of rows)."""
ORDER_DONE: Final = 17
READING_DONE: Final = 8
"""Index of the word ``done`` of an order, and of a reading."""

_byte_of = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


class Output(IntEnum):
    """What a commit outputs besides the change."""

    NOTHING = 0
    MOVED = 1  # of ELASTIC: the moved operand x - d
    DELTA = 2  # of ELASTIC: the change d
    OLD = 3  # the old bytes
    NEW = 4  # the new bytes


class Result(IntEnum):
    """How an order or a read ended."""

    DONE = 0
    BUSY = 1
    OPEN = 2
    FREED = 3
    BAD_ORDER = 4
    NOT_OWN = 5


def address_of(array: NDArray[Any]) -> int:
    """Return the address of an array's data, in the fastest way that Python has."""
    try:
        return _addressof(_byte_of(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, or of ml_dtypes
        address: int = array.__array_interface__["data"][0]
        return address


class Block:
    """Bytes at a fixed address, which C reads and writes.

    Attributes:
        bytes: as a bytearray.
        words: as 64-bit words.
        address: of the first byte.
        ref: the address as an argument of a native function.

    Args:
        nbytes: a multiple of 8.
    """

    __slots__ = ("_keeper", "address", "bytes", "ref", "words")

    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(max(8, nbytes))
        self.words = memoryview(self.bytes).cast("Q")
        # The export of the buffer prevents that it is resized and moves.
        self._keeper = (ctypes.c_char * len(self.bytes)).from_buffer(self.bytes)
        self.address = ctypes.addressof(self._keeper)
        self.ref = ctypes.byref(self._keeper)

    def ref_at(self, nbytes: int) -> Any:
        """Return the address of byte ``nbytes`` as an argument of a native function."""
        return ctypes.byref(self._keeper, nbytes)


def block_of(*words: int) -> Block:
    """Return a struct of native.h, such as ``struct region``, with these words.

    It is valid as long as the arrays exist whose addresses it holds.
    """
    block = Block(8 * len(words))
    struct.pack_into(f"<{len(words)}Q", block.bytes, 0, *words)
    return block


def extents_of(regions: Sequence[Block]) -> bytes:
    """Return the fields of an order that name its regions: the region and its siblings."""
    addresses = [block.address for block in regions] + [0] * 3
    return _EXTENTS.pack(len(regions), *addresses[:4])


def order_outcome(block: Block, place: int = 0) -> tuple[int, int, int, int]:
    """Return the byte done, the result, and address and stripe of the blocking region."""
    at = place * ORDER_WORDS + ORDER_DONE
    done, result, blocked, stripe = block.words[at : at + 4]
    return done, result, blocked, stripe
