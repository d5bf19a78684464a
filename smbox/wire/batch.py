"""Many small changes in one request: the second frame of a BATCH and of its reply. Pure.

The frame is ``count`` item headers of 32 bytes, then the source bytes of all items in order.
The reply's frame is the old bytes of the items that answer, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from smbox.errors import LocalProtocolError, RemoteProtocolError
from smbox.wire.header import NO_SCALE, REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import (
    ANSWERS,
    NARROW_ANSWERS,
    NARROW_ITEMSIZES,
    OP_OF,
    SCATTER_KERNELS,
    SOURCES,
    WHOLE_KERNELS,
    WHOLE_SOURCE_NBYTES_MAX,
    Op,
    carried_nbytes,
)

# op, kernel, operand, source bytes, address, nbytes, scale
_ITEM: Final = struct.Struct("<BBBxIQQ8s")
ITEM_NBYTES: Final = 32
ITEMS_MAX: Final = 32
BATCH_NBYTES_MAX: Final = ITEMS_MAX * ITEM_NBYTES + REQUEST_NBYTES_MAX
"""Bytes of a batch's frame; its answers together are at most REQUEST_NBYTES_MAX."""


@dataclass(slots=True)
class Item:
    """One change of a batch; it lies within one stripe and takes one number.

    Attributes:
        op: PUT, ACCUMULATE, ELASTIC or FETCH.
        address: global address of the first byte.
        nbytes: of the range.
        source: its bytes; as many elements as the range has, but for the kernels with their own
            length.
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
        if self.op not in ANSWERS:
            return 0
        return carried_nbytes(self.nbytes, self.operand if self.op in NARROW_ANSWERS else 0)


def pack_items(items: Sequence[Item]) -> bytes:
    """Build the second frame of a BATCH.

    Raises:
        LocalProtocolError: an item or the whole breaks a rule of docs/protocol.md.
    """
    try:
        for item in items:
            _check(item)
        _check_all(items)
        heads = [_head(item) for item in items]
    except (RemoteProtocolError, struct.error) as error:
        raise LocalProtocolError(f"illegal batch: {error}") from error
    return b"".join([*heads, *(item.source for item in items)])


def unpack_items(count: int, body: Buffer) -> tuple[Item, ...]:
    """Take the second frame of a BATCH apart; sources are views of it.

    Raises:
        RemoteProtocolError: it is not exactly ``count`` legal items.
    """
    if not 1 <= count <= ITEMS_MAX or len(body) < count * ITEM_NBYTES:
        raise RemoteProtocolError("wrong count of items", count=count, nbytes=len(body))
    items = tuple(_items(count, memoryview(body)))
    if sum(len(item.source) for item in items) != len(body) - count * ITEM_NBYTES:
        raise RemoteProtocolError("sources and items differ", count=count, nbytes=len(body))
    _check_all(items)
    return items


def answers_nbytes(items: Sequence[Item]) -> int:
    """Return the bytes of the whole reply."""
    return sum(item.answer_nbytes for item in items)


def _head(item: Item) -> bytes:
    return _ITEM.pack(
        item.op,
        item.kernel,
        item.operand,
        len(item.source),
        item.address,
        item.nbytes,
        item.scale,
    )


def _items(count: int, body: memoryview) -> Iterator[Item]:
    at = count * ITEM_NBYTES
    for code, kernel, operand, source, address, nbytes, scale in _ITEM.iter_unpack(body[:at]):
        op = OP_OF.get(code)
        if op is None:
            raise RemoteProtocolError("unknown op in a batch", op=code)
        item = Item(op, kernel, address, nbytes, body[at : at + source], scale, operand)
        if len(item.source) != source:
            raise RemoteProtocolError("source is cut off", nbytes=source)
        _check(item)
        yield item
        at += source


def _check(item: Item) -> None:
    if item.op not in SOURCES:
        raise RemoteProtocolError("op not allowed in a batch", op=item.op.name)
    if item.operand and item.operand not in NARROW_ITEMSIZES:
        raise RemoteProtocolError("no such operand type", operand=item.operand)
    if item.kernel in WHOLE_KERNELS:
        if len(item.source) > WHOLE_SOURCE_NBYTES_MAX:
            raise RemoteProtocolError("source too long", nbytes=len(item.source))
    elif item.kernel not in SCATTER_KERNELS and len(item.source) != carried_nbytes(
        item.nbytes, item.operand
    ):
        raise RemoteProtocolError(
            "source and range differ", source=len(item.source), nbytes=item.nbytes
        )


def _check_all(items: Sequence[Item]) -> None:
    if not 1 <= len(items) <= ITEMS_MAX:
        raise RemoteProtocolError("wrong count of items", count=len(items))
    if sum(len(item.source) for item in items) > REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("sources too long", limit=REQUEST_NBYTES_MAX)
    if answers_nbytes(items) > REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("answers too long", limit=REQUEST_NBYTES_MAX)
