"""Orders to the native library: the structs of smbox/native/native.h, filled from Python.

Addresses of arrays are plain numbers here: the caller of the library holds the arrays.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ORDER_WORDS: Final = 21
ORDER_NBYTES: Final = 8 * ORDER_WORDS
READING_NBYTES: Final = 88

_FLOAT_ORDER: Final = struct.Struct("<12Qd5Q24x")
_WHOLE_ORDER: Final = struct.Struct("<12Qq5Q24x")
_REGION: Final = struct.Struct("<9Q")
_WRITER: Final = struct.Struct("<5QqQ")
_CHANNEL: Final = struct.Struct("<6Q")
_READING: Final = struct.Struct("<11Q")
_OUTCOME: Final = struct.Struct("<4Q")
_OUTCOME_AT: Final = 17 * 8
_READ_OUTCOME: Final = struct.Struct("<3Q")
_READ_OUTCOME_AT: Final = 8 * 8

_BYTE: Final = ctypes.c_char


class Back(IntEnum):
    """What a commit hands back to its caller."""

    __hash__ = int.__hash__

    NOTHING = 0
    MOVED = 1  # of ELASTIC: the operand, moved
    DELTA = 2  # of ELASTIC: what was added
    OLD = 3  # the old bytes


class Result(IntEnum):
    """How an order, or a read, ended."""

    DONE = 0
    BUSY = 1
    OPEN = 2
    FREED = 3
    BAD_ORDER = 4
    LOCK_FAILED = 5


def address_of(array: NDArray[Any]) -> int:
    """Return where an array's data begins; the quickest of the ways that Python has."""
    try:
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only or empty
        address: int = array.__array_interface__["data"][0]
        return address


class Block:
    """Some bytes at a fixed address that C reads and writes.

    Attributes:
        bytes: to pack into.
        address: of the first byte.

    Args:
        nbytes: how many.
    """

    __slots__ = ("_keeper", "address", "bytes")

    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(max(1, nbytes))
        self._keeper = (ctypes.c_char * len(self.bytes)).from_buffer(
            self.bytes
        )  # it cannot move now
        self.address = ctypes.addressof(self._keeper)


def region_block(
    header: NDArray[np.uint64],
    table: NDArray[np.uint64],
    data: NDArray[np.uint8],
    *,
    address: int,
    lock: int,
    stripe_nbytes: int,
    dtype: int,
    consistency: int,
) -> Block:
    """Describe a mapped region; valid as long as its arrays are."""
    block = Block(_REGION.size)
    _REGION.pack_into(
        block.bytes,
        0,
        address_of(header),
        address_of(table),
        address_of(data),
        data.size,
        address,
        lock,
        stripe_nbytes,
        dtype,
        consistency,
    )
    return block


def writer_block(
    slot: NDArray[np.uint64], areas: list[NDArray[np.uint8]], locks: int, block_nbytes: int
) -> Block:
    """Describe a writer: its slot, its undo areas and its open lock file."""
    block = Block(_WRITER.size)
    addresses = [address_of(area) for area in areas]
    _WRITER.pack_into(block.bytes, 0, address_of(slot), *addresses, locks, block_nbytes)
    return block


def channel_block(
    row: NDArray[np.uint64],
    index: int,
    ring: int = 0,
    ring_base: int = 0,
    ring_offset: int = 0,
    entry_nbytes: int = 0,
) -> Block:
    """Describe a remote channel at the node, and the ring that its answers go to."""
    block = Block(_CHANNEL.size)
    _CHANNEL.pack_into(
        block.bytes, 0, address_of(row), index, ring, ring_base, ring_offset, entry_nbytes
    )
    return block


def pack_order(  # noqa: PLR0913, PLR0917 - the words of the struct
    block: Block,
    place: int,
    kernel: int,
    operand: int,
    regions: Sequence[int],
    first: int,
    limit: int,
    source: NDArray[np.uint8],
    scale: float,
    at: int,
    back: int = 0,
    back_to: int = 0,
    parameters: int = 0,
    channel: int = 0,
    number: int = 0,
) -> None:
    """Write the order of index ``place``; see ``struct order``.

    Args:
        block: of at least ``place + 1`` orders.
        place: which one.
        kernel: a ``KernelCode`` or ``OptimizerCode``.
        operand: the dtype code of the source.
        regions: addresses of the blocks of the region and its siblings.
        first: first byte of the range in the region's data.
        limit: byte behind it.
        source: the operand's bytes.
        scale: a float for float regions, else a whole number as int64.
        at: byte from which on the order is still to be done.
        back: a ``Back``.
        back_to: address of what receives it.
        parameters: address of an optimizer's four.
        channel: address of a channel's block.
        number: of the first stripe's commit on that channel.
    """
    pack = _FLOAT_ORDER if type(scale) is float else _WHOLE_ORDER
    one, two, three, four, *_ = *regions, 0, 0, 0
    pack.pack_into(
        block.bytes,
        place * ORDER_NBYTES,
        kernel,
        operand,
        back,
        len(regions),
        one,
        two,
        three,
        four,
        first,
        limit,
        address_of(source),
        source.size,
        scale,
        parameters,
        back_to,
        channel,
        number,
        at,
    )


def order_outcome(block: Block, place: int = 0) -> tuple[int, int, int, int]:
    """Return byte done, result, address of the region met, and its stripe."""
    found: tuple[int, int, int, int] = _OUTCOME.unpack_from(
        block.bytes, place * ORDER_NBYTES + _OUTCOME_AT
    )
    return found


def pack_reading(  # noqa: PLR0913 - the words of the struct
    block: Block,
    region: int,
    first: int,
    limit: int,
    out: NDArray[np.uint8],
    operand: int,
    *,
    places: int = 0,
    count: int = 0,
    row_nbytes: int = 0,
    done: int = 0,
) -> None:
    """Write a reading; see ``struct reading``."""
    _READING.pack_into(
        block.bytes,
        0,
        region,
        first,
        limit,
        places,
        count,
        row_nbytes,
        address_of(out),
        operand,
        done,
        0,
        0,
    )


def reading_outcome(block: Block) -> tuple[int, int, int]:
    """Return bytes (or rows) done, result, and the stripe met."""
    found: tuple[int, int, int] = _READ_OUTCOME.unpack_from(block.bytes, _READ_OUTCOME_AT)
    return found
