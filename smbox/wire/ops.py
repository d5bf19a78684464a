"""The operations of the protocol and what each one carries, as tables. Pure.

docs/protocol.md is authoritative; a test compares its table with this one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


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


CONTROL: Final = frozenset(op for op in Op if op < Op.GET)
"""Operations whose body is one msgpack map of messages.py."""

CHANGES: Final = frozenset(
    {Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.FROM, Op.UPDATE}
)
"""Operations that change memory: each takes a number for every stripe it touches."""

UNCOPIED: Final = frozenset({Op.LEND, Op.STAMPS})
"""Operations that read without a copy; what they bring is to be compared."""

COPIED: Final = frozenset({Op.GET, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.GATHER})
"""Operations whose reply carries bytes that are the reply's own, or the channel's."""

ANSWERS: Final = COPIED | UNCOPIED
"""Operations whose reply carries bytes: a repeated request needs that reply again."""

SOURCES: Final = frozenset({Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH})
"""Operations whose request carries source bytes as its second frame."""

OPERANDS: Final = frozenset({Op.GATHER, Op.FROM, Op.UPDATE, Op.SNAPSHOT})
"""Operations whose second frame is an operand of their own form: operands.py."""

UNFENCED: Final = frozenset({Op.HELLO, Op.BYE})
"""Operations that do not wait for earlier changes; their number is 0."""

WHOLE_KERNELS: Final = frozenset({6, 7, 8})
"""Kernels (COMPARE_SWAP, ARRIVE, WITHDRAW) whose source has a length of its own."""

WHOLE_SOURCE_NBYTES_MAX: Final = 64

SCATTER_KERNELS: Final = frozenset({9, 10})
"""Kernels (SCATTER_PUT, SCATTER_SUM) whose source names rows: as long as a request may be."""

NARROW_ITEMSIZES: Final = {10: 2, 11: 2}
"""Bytes of an element by operand code: float16 and bfloat16, of a float32 region."""

NARROW_ANSWERS: Final = frozenset({Op.GET, Op.ELASTIC, Op.GATHER})
"""Operations whose reply carries elements of the operand's type; FETCH: of the region's."""

OPERAND_OPS: Final = NARROW_ANSWERS | {Op.PUT, Op.ACCUMULATE, Op.FETCH, Op.UPDATE}
"""Operations whose request may name an operand type."""


def carried_nbytes(nbytes: int, operand: int) -> int:
    """Return the bytes on the wire of ``nbytes`` of a region: half as many where narrow."""
    return nbytes // 2 if operand else nbytes


OP_OF: Final = {int(op): op for op in Op}
"""Operation by number: a dict is six times faster than calling the enum."""
