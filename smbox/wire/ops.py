"""Operations and statuses of the protocol: their numbers, frames, lengths and errors. Pure.

docs/protocol.md is authoritative; a test compares its tables with this file.

A transfer of a range is split into requests, and a change takes a number for each stripe that
it touches. Both are split at multiples of their size from the region's first byte, not from
address 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, Self

from smbox import errors
from smbox.errors import RemoteProtocolError, SmboxError
from smbox.wire.header import (
    LONG_NBYTES_MAX,
    REQUEST_NBYTES_MAX,
    STAMPED_NBYTES_MAX,
    Buffer,
)


class Op(IntEnum):
    """The operation of a request; numbers are never reused."""

    __hash__ = int.__hash__  # Enum's own is Python code, and a message needs ten table look-ups

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


class Status(IntEnum):
    """The result of a request; numbers are never reused.

    1-63 become an error of the caller. The session itself handles 64 and above.

    Attributes:
        error: error class that the status raises at the caller.
    """

    __hash__ = int.__hash__  # as in Op
    error: type[SmboxError] | None

    def __new__(cls, number: int, error: type[SmboxError] | None = None) -> Self:
        """Create a member from a row of the table: number and error class."""
        member = int.__new__(cls, number)
        member._value_, member.error = number, error
        return member

    OK = 0
    ERROR = 1, errors.RemoteError
    REGION_NOT_FOUND = 2, errors.RegionNotFoundError
    REGION_EXISTS = 3, errors.RegionExistsError
    REGION_FREED = 4, errors.RegionFreedError
    ADDRESS_RANGE = 5, errors.AddressRangeError
    LAYOUT_MISMATCH = 6, errors.LayoutMismatchError
    OUT_OF_MEMORY = 7, errors.OutOfMemoryError
    LIMIT = 8, errors.LimitError
    ACCESS_DENIED = 9, errors.AccessDeniedError
    SESSION_EXPIRED = 10, errors.SessionExpiredError
    STOPPING = 11, errors.NodeStoppingError
    TIMEOUT = 12, errors.RequestTimeoutError
    BAD_MESSAGE = 13, errors.RemoteProtocolError
    VERSION = 14, errors.VersionMismatchError
    OTHER_MEMORY = 15, errors.PeerLostError
    NO_SESSION = 64
    GAP = 65
    PARKED = 66


CONTROL: Final = frozenset(op for op in Op if op < Op.GET)
"""Operations whose body is one msgpack map of messages.py."""

CHANGES: Final = frozenset(
    {Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.FROM, Op.UPDATE}
)
"""Operations that change memory: each takes a number for every stripe it touches."""

COPIED: Final = frozenset({Op.GET, Op.ELASTIC, Op.FETCH, Op.BATCH, Op.GATHER})
"""Operations whose reply carries a copy, or bytes of the channel's ring."""

ANSWERS: Final = COPIED | {Op.LEND, Op.STAMPS, Op.DOT}
"""Operations whose reply carries bytes; a repeated request needs that reply again."""

SOURCES: Final = frozenset({Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH})
"""Operations whose request carries source bytes as its second frame."""

OPERANDS: Final = frozenset({Op.GATHER, Op.FROM, Op.UPDATE, Op.DOT})
"""Operations whose second frame is an operand with its own layout: operands.py."""

NARROW_OPERANDS: Final = frozenset({10, 11})
"""Operand codes of float16 and bfloat16, for float32 regions."""

NARROW_ANSWERS: Final = frozenset({Op.GET, Op.ELASTIC, Op.GATHER})
"""Operations whose reply carries elements of the operand's type (FETCH: the region's)."""

OPERAND_OPS: Final = NARROW_ANSWERS | {Op.PUT, Op.ACCUMULATE, Op.FETCH, Op.UPDATE}
"""Operations whose request may have an operand type."""

OP_OF: Final = {int(op): op for op in Op}
"""Operation by number: a dict look-up is six times faster than a call of the enum."""

_UNITS: Final = {
    **dict.fromkeys(SOURCES, LONG_NBYTES_MAX),
    Op.LEND: LONG_NBYTES_MAX,
    Op.STAMPS: STAMPED_NBYTES_MAX,
}


def unit_of(op: Op) -> int:
    """Return the most bytes that a request of ``op`` covers; transfers are split there."""
    return _UNITS.get(op, REQUEST_NBYTES_MAX)


def end_of(op: Op, first: int, limit: int) -> int:
    """Return the end of the request of ``op`` that begins at ``first``."""
    unit = _UNITS.get(op, REQUEST_NBYTES_MAX)
    return min(limit, (first // unit + 1) * unit)


def cut(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> Iterator[tuple[int, int]]:
    """Split a range at the multiples of ``unit``; yield (first, limit) pairs in order."""
    while first < limit:
        end = min(limit, (first // unit + 1) * unit)
        yield first, end
        first = end


def count(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> int:
    """Return the number of pieces that ``cut`` yields."""
    return (limit - 1) // unit - first // unit + 1 if first < limit else 0


def carried_nbytes(nbytes: int, operand: int) -> int:
    """Return the bytes on the wire for ``nbytes`` of a region: half if narrow."""
    return nbytes // 2 if operand else nbytes


def answer_nbytes(op: Op, nbytes: int, operand: int) -> int:
    """Return the length of the answer to a request, or item of a batch, of ``nbytes``."""
    return carried_nbytes(nbytes, operand if op in NARROW_ANSWERS else 0)


def check_length(body: Buffer | None, limit: int) -> Buffer:
    """Return the second frame; raise if it is missing or longer than ``limit``."""
    if body is None:
        raise RemoteProtocolError("two frames expected")
    if len(body) > limit:
        raise RemoteProtocolError("frame too long", nbytes=len(body), limit=limit)
    return body


def check_operand(op: Op, operand: int) -> None:
    """Raise RemoteProtocolError if a request cannot have this operand type."""
    if op not in OPERAND_OPS or operand not in NARROW_OPERANDS:
        raise RemoteProtocolError("no such operand type", op=op.name, operand=operand)


def check_answer(op: Op, nbytes: int, operand: int, body: Buffer | None) -> Buffer:
    """Return the answer to a request of ``nbytes``; raise if its length is wrong."""
    if op in (Op.BATCH, Op.STAMPS, Op.DOT):  # their length does not depend on nbytes
        return check_length(body, REQUEST_NBYTES_MAX)
    found = check_length(body, unit_of(op))
    if len(found) != answer_nbytes(op, nbytes, operand):
        raise RemoteProtocolError("answer and range differ", answer=len(found), nbytes=nbytes)
    return found


_STATUS_OF_ERROR: Final = {status.error: status for status in Status if status.error}
"""Status by error class."""

STATUS_OF: Final = {int(status): status for status in Status}
"""Status by number."""


def status_of(error: SmboxError) -> Status:
    """Return the status of an error's class, or of the nearest base class in the table."""
    for base in type(error).__mro__:
        if base in _STATUS_OF_ERROR:
            return _STATUS_OF_ERROR[base]
    return Status.ERROR


def error_of(status: Status, message: str, facts: dict[str, Any]) -> SmboxError:
    """Return the error that ``status`` raises at the caller.

    A peer may send facts of any name, so names of the constructor's parameters are removed.
    """
    free = {name: value for name, value in facts.items() if name not in {"self", "message"}}
    return (status.error or errors.RemoteError)(message, **free)


def plain_facts(error: SmboxError) -> dict[str, Any]:
    """Return the facts of an error as values that msgpack can encode."""
    return {name: _plain(value) for name, value in error.facts.items()}


def _plain(value: object) -> Any:
    if isinstance(value, bool | float | str | None):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return int(value)
    return str(value)
