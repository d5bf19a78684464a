"""Second frames with a binary layout of their own: operands and batches. Pure.

Each has a fixed head of little-endian words; bytes may follow:

    GATHER    row_nbytes u64 | place i64[count]
    FROM      source address u64
    DOT       source address u64
    UPDATE    siblings u64 | sibling address u64[3] | parameter f64[4] | gradient
    BATCH     item[count], 32 bytes each | the source bytes of all items, in order

The second frame of the reply to a BATCH holds the answers of its items, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from smbox.errors import RemoteProtocolError
from smbox.wire.header import LONG_NBYTES_MAX, NO_SCALE, REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import ANSWERS, OP_OF, OPERANDS, SOURCES, Op, answer_nbytes, check_operand

PLACE_NBYTES: Final = 8
SIBLINGS_MAX: Final = 3
PARAMETERS_MAX: Final = 4

_WORD: Final = struct.Struct("<Q")
_UPDATE: Final = struct.Struct("<Q3Q4d")

PLACES_MAX: Final = (REQUEST_NBYTES_MAX - _WORD.size) // PLACE_NBYTES
"""Rows of one GATHER."""

# op, kernel, operand, source bytes, address, nbytes, scale
_ITEM: Final = struct.Struct("<BBBxIQQ8s")
ITEM_NBYTES: Final = 32
ITEMS_MAX: Final = 32

PAYLOAD_NBYTES_MAX: Final = {
    **dict.fromkeys(SOURCES, LONG_NBYTES_MAX),
    **dict.fromkeys(OPERANDS, REQUEST_NBYTES_MAX + _UPDATE.size),
    Op.BATCH: REQUEST_NBYTES_MAX + ITEMS_MAX * ITEM_NBYTES,
}
"""Operations whose request has data in its second frame, and the longest such frame."""


class Update(NamedTuple):
    """A step of a server-side optimizer on the request's range.

    Attributes:
        siblings: addresses of the regions that hold its state, in the order of OPTIMIZERS.
        parameters: four numbers; the optimizer uses the first few.
        gradient: one element for each element of the range.
    """

    siblings: tuple[int, ...]
    parameters: tuple[float, ...]
    gradient: Buffer


def pack_gather(row_nbytes: int, places: Buffer) -> bytes:
    """Encode the operand of a GATHER; ``places`` are the bytes of ``i64[count]``."""
    return _WORD.pack(row_nbytes) + places


def unpack_gather(operand: Buffer, nbytes: int) -> tuple[int, memoryview]:
    """Decode the operand of a GATHER.

    Args:
        operand: the second frame.
        nbytes: of the answer, from the header.

    Returns:
        Bytes of a row, at least 1, and ``i64[count]`` as bytes: row numbers, counted from the
        request's address.

    Raises:
        RemoteProtocolError: the frame has a wrong length, or rows and answer differ in length.
    """
    view = memoryview(operand)
    if len(view) < _WORD.size or (len(view) - _WORD.size) % PLACE_NBYTES:
        raise RemoteProtocolError("the frame is not a list of rows", nbytes=len(view))
    (row_nbytes,) = _WORD.unpack_from(view)
    count = (len(view) - _WORD.size) // PLACE_NBYTES
    if count * row_nbytes != nbytes or not 0 < nbytes <= REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("rows and answer differ", rows=count, nbytes=nbytes)
    return row_nbytes, view[_WORD.size :]


def pack_address(address: int) -> bytes:
    """Encode the operand of a FROM or a DOT."""
    return _WORD.pack(address)


def unpack_address(operand: Buffer) -> int:
    """Decode the operand of a FROM or a DOT.

    Raises:
        RemoteProtocolError: it is not one address.
    """
    if len(operand) != _WORD.size:
        raise RemoteProtocolError("one address expected", nbytes=len(operand))
    (address,) = _WORD.unpack(operand)
    return int(address)


def pack_update(
    siblings: Sequence[int], parameters: Sequence[float], gradient: Buffer
) -> bytes:
    """Encode the operand of an UPDATE: at most SIBLINGS_MAX, and PARAMETERS_MAX parameters."""
    addresses = [*siblings, *[0] * (SIBLINGS_MAX - len(siblings))]
    numbers = [*parameters, *[0.0] * (PARAMETERS_MAX - len(parameters))]
    return b"".join([_UPDATE.pack(len(siblings), *addresses, *numbers), gradient])


def unpack_update(operand: Buffer, gradient_nbytes: int) -> Update:
    """Decode the operand of an UPDATE; the gradient is a view of it.

    Raises:
        RemoteProtocolError: wrong length, or too many siblings.
    """
    view = memoryview(operand)
    if len(view) != _UPDATE.size + gradient_nbytes:
        raise RemoteProtocolError("gradient and range differ", nbytes=len(view))
    count, *words = _UPDATE.unpack_from(view)
    if count > SIBLINGS_MAX:
        raise RemoteProtocolError("too many siblings", siblings=count)
    return Update(tuple(words[:count]), tuple(words[SIBLINGS_MAX:]), view[_UPDATE.size :])


class Item(Struct):
    """One change of a batch, within one stripe; it takes one number.

    Attributes:
        op: PUT, ACCUMULATE, ELASTIC or FETCH.
        address: global address of the first byte.
        nbytes: of the range.
        source: one element for each element of the range; other kernels have their own length.
        operand: dtype code of the source's elements; 0: the region's.
    """

    op: Op
    kernel: int
    address: int
    nbytes: int
    source: Buffer
    scale: bytes = NO_SCALE
    operand: int = 0

    @property
    def answer_nbytes(self) -> int:
        """Bytes of this item in the reply."""
        return answer_nbytes(self.op, self.nbytes, self.operand) if self.op in ANSWERS else 0


def pack_items(items: Sequence[Item]) -> bytes:
    """Encode the second frame of a BATCH; the node checks the rules of docs/protocol.md."""
    heads = [
        _ITEM.pack(
            item.op,
            item.kernel,
            item.operand,
            len(item.source),
            item.address,
            item.nbytes,
            item.scale,
        )
        for item in items
    ]
    return b"".join([*heads, *(item.source for item in items)])


def unpack_items(count: int, body: Buffer) -> tuple[Item, ...]:
    """Decode the second frame of a BATCH; sources are views of it.

    Raises:
        RemoteProtocolError: it does not consist of ``count`` legal items.
    """
    at = count * ITEM_NBYTES
    if not 1 <= count <= ITEMS_MAX or len(body) < at:
        raise RemoteProtocolError("wrong number of items", count=count, nbytes=len(body))
    view = memoryview(body)
    items = []
    for code, kernel, operand, source, address, nbytes, scale in _ITEM.iter_unpack(view[:at]):
        op = OP_OF.get(code)
        if op is None or op not in SOURCES:
            raise RemoteProtocolError("op not allowed in a batch", op=code)
        if operand:
            check_operand(op, operand)
        items.append(Item(op, kernel, address, nbytes, view[at : at + source], scale, operand))
        at += source
    if at != len(body):
        raise RemoteProtocolError(
            "sources and items differ in length", count=count, nbytes=len(body)
        )
    if sum(len(item.source) for item in items) > REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("sources too long", limit=REQUEST_NBYTES_MAX)
    if sum(item.answer_nbytes for item in items) > REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("answers too long", limit=REQUEST_NBYTES_MAX)
    return tuple(items)
