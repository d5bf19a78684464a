"""The operations of the protocol: what each one carries, and how long its pieces are. Pure.

docs/protocol.md is authoritative; a test compares its table with this one.

A range of a region's data becomes requests, and a change takes a number for each stripe it
touches: both are cut at multiples of their size from the region's first byte, not from address
0.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from smbox.errors import RemoteProtocolError
from smbox.wire.header import (
    LONG_NBYTES_MAX,
    REQUEST_NBYTES_MAX,
    STAMPED_NBYTES_MAX,
    Buffer,
)


class Op(IntEnum):
    """What a request asks; a number is never given a second meaning."""

    __hash__ = int.__hash__  # Enum's own is Python code, and every message asks ten tables

    HELLO = 1
    BYE = 2
    PING = 3
    CREATE = 4
    PUBLISH = 5
    ATTACH = 6
    FREE = 7
    LIST = 8
    STATS = 9
    GET = 16
    PUT = 17
    ACCUMULATE = 18
    ELASTIC = 19
    FETCH = 20
    WAIT = 21
    BATCH = 22
    GATHER = 23
    FROM = 24
    UPDATE = 26  # 25 is retired
    SNAPSHOT = 27
    LEND = 28
    STAMPS = 29
    DOT = 30


CONTROL: Final = frozenset(op for op in Op if op < Op.GET)
"""Operations whose body is one msgpack map of messages.py."""

CHANGES: Final = frozenset(
    {Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.FROM, Op.UPDATE}
)
"""Operations that change memory: each takes a number for every stripe it touches."""

COPIED: Final = frozenset({Op.GET, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.GATHER})
"""Operations whose reply carries bytes that are the reply's own, or the channel's."""

ANSWERS: Final = COPIED | {Op.LEND, Op.STAMPS, Op.DOT}
"""Operations whose reply carries bytes: a repeated request needs that reply again."""

SOURCES: Final = frozenset({Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH})
"""Operations whose request carries source bytes as its second frame."""

OPERANDS: Final = frozenset({Op.GATHER, Op.FROM, Op.UPDATE, Op.SNAPSHOT, Op.DOT})
"""Operations whose second frame is an operand of their own form: operands.py."""

WHOLE_KERNELS: Final = frozenset({6, 7, 8})
"""Kernels (COMPARE_SWAP, ARRIVE, WITHDRAW) whose source has a length of its own."""

WHOLE_SOURCE_NBYTES_MAX: Final = 64

SCATTER_KERNELS: Final = frozenset({9, 10})
"""Kernels (SCATTER_PUT, SCATTER_SUM) whose source names rows: as long as a request may be."""

BARE_KERNELS: Final = frozenset({11})
"""Kernels (SCALE) without an operand: their source has no bytes."""

NARROW_ITEMSIZES: Final = {10: 2, 11: 2}
"""Bytes of an element by operand code: float16 and bfloat16, of a float32 region."""

NARROW_ANSWERS: Final = frozenset({Op.GET, Op.ELASTIC, Op.GATHER})
"""Operations whose reply carries elements of the operand's type; FETCH: of the region's."""

OPERAND_OPS: Final = NARROW_ANSWERS | {Op.PUT, Op.ACCUMULATE, Op.FETCH, Op.UPDATE}
"""Operations whose request may name an operand type."""

OP_OF: Final = {int(op): op for op in Op}
"""Operation by number: a dict is six times faster than calling the enum."""

_UNITS: Final = {
    **dict.fromkeys(SOURCES, LONG_NBYTES_MAX),
    Op.LEND: LONG_NBYTES_MAX,
    Op.STAMPS: STAMPED_NBYTES_MAX,
}


def unit_of(op: Op) -> int:
    """Return how many bytes a request of ``op`` covers at most, and where it is cut."""
    return _UNITS.get(op, REQUEST_NBYTES_MAX)


def end_of(op: Op, first: int, limit: int) -> int:
    """Return where the request of ``op`` that begins at ``first`` ends."""
    unit = _UNITS.get(op, REQUEST_NBYTES_MAX)
    return min(limit, (first // unit + 1) * unit)


def cut(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> Iterator[tuple[int, int]]:
    """Cut a range at the multiples of ``unit``, ascending; an empty range gives nothing."""
    while first < limit:
        end = min(limit, (first // unit + 1) * unit)
        yield first, end
        first = end


def count(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> int:
    """Count the pieces of ``cut``: the numbers of a change, or the requests of a transfer."""
    return (limit - 1) // unit - first // unit + 1 if first < limit else 0


def carried_nbytes(nbytes: int, operand: int) -> int:
    """Return the bytes on the wire of ``nbytes`` of a region: half as many where narrow."""
    return nbytes // 2 if operand else nbytes


def answer_nbytes(op: Op, nbytes: int, operand: int) -> int:
    """Return the bytes of the answer to a request, or an item of a batch, of ``nbytes``."""
    return carried_nbytes(nbytes, operand if op in NARROW_ANSWERS else 0)


def check_length(body: Buffer | None, limit: int) -> Buffer:
    """Return a second frame, which must be there and no longer than ``limit``."""
    if body is None:
        raise RemoteProtocolError("two frames expected")
    if len(body) > limit:
        raise RemoteProtocolError("frame too long", nbytes=len(body), limit=limit)
    return body


def check_operand(op: Op, kernel: int, operand: int) -> None:
    """Refuse an operand type that the request cannot have."""
    others = WHOLE_KERNELS | SCATTER_KERNELS | BARE_KERNELS
    if op not in OPERAND_OPS or kernel in others:
        raise RemoteProtocolError("this request has no operand type", op=op.name)
    if operand not in NARROW_ITEMSIZES:
        raise RemoteProtocolError("no such operand type", operand=operand)


def check_source(op: Op, kernel: int, nbytes: int, operand: int, body: Buffer | None) -> Buffer:
    """Return the source bytes of a change of ``nbytes``, if they are as many as its own."""
    longest = unit_of(op)
    found = check_length(body, longest)
    if nbytes > longest:
        raise RemoteProtocolError("too long a range", nbytes=nbytes)
    if kernel in WHOLE_KERNELS:
        return check_length(found, WHOLE_SOURCE_NBYTES_MAX)
    if kernel in SCATTER_KERNELS:
        return check_length(found, REQUEST_NBYTES_MAX)
    if kernel in BARE_KERNELS:
        return check_length(found, 0)
    if len(found) != carried_nbytes(nbytes, operand):
        raise RemoteProtocolError("source and range differ", source=len(found), nbytes=nbytes)
    return found


def check_answer(op: Op, nbytes: int, operand: int, body: Buffer | None) -> Buffer:
    """Return the bytes of an answer to a request of ``nbytes``, if they are as many."""
    if op in (Op.BATCH, Op.STAMPS, Op.DOT):  # a length of their own
        return check_length(body, REQUEST_NBYTES_MAX)
    found = check_length(body, unit_of(op))
    if len(found) != answer_nbytes(op, nbytes, operand):
        raise RemoteProtocolError("answer and range differ", answer=len(found), nbytes=nbytes)
    return found
