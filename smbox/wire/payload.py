"""What the second frame of a data message may be: lengths and operand types. Pure."""

from __future__ import annotations

from typing import Final

from smbox.errors import RemoteProtocolError
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import (
    NARROW_ANSWERS,
    NARROW_ITEMSIZES,
    OPERAND_OPS,
    SCATTER_KERNELS,
    WHOLE_KERNELS,
    WHOLE_SOURCE_NBYTES_MAX,
    Op,
    carried_nbytes,
)
from smbox.wire.pieces import unit_of

_LENGTH_OF_ITS_OWN: Final = frozenset({Op.BATCH, Op.STAMPS})


def limited(body: Buffer | None, limit: int) -> Buffer:
    """Return the second frame, which must be there and no longer than ``limit``."""
    if body is None:
        raise RemoteProtocolError("two frames expected")
    if len(body) > limit:
        raise RemoteProtocolError("frame too long", nbytes=len(body), limit=limit)
    return body


def check_operand(op: Op, kernel: int, operand: int) -> None:
    """Refuse an operand type that the request cannot have."""
    if op not in OPERAND_OPS or kernel in WHOLE_KERNELS or kernel in SCATTER_KERNELS:
        raise RemoteProtocolError("this request has no operand type", op=op.name)
    if operand not in NARROW_ITEMSIZES:
        raise RemoteProtocolError("no such operand type", operand=operand)


def source(op: Op, kernel: int, nbytes: int, operand: int, body: Buffer | None) -> Buffer:
    """Check the source bytes of a change of ``nbytes``."""
    longest = unit_of(op)
    found = limited(body, longest)
    if nbytes > longest:
        raise RemoteProtocolError("too long a range", nbytes=nbytes)
    if kernel in WHOLE_KERNELS:
        return limited(found, WHOLE_SOURCE_NBYTES_MAX)
    if kernel in SCATTER_KERNELS:
        return limited(found, REQUEST_NBYTES_MAX)
    if len(found) != carried_nbytes(nbytes, operand):
        raise RemoteProtocolError("source and range differ", source=len(found), nbytes=nbytes)
    return found


def answer(op: Op, nbytes: int, operand: int, body: Buffer | None) -> Buffer:
    """Check the bytes of an answer to a request of ``nbytes``."""
    if op in _LENGTH_OF_ITS_OWN:
        return limited(body, REQUEST_NBYTES_MAX)
    found = limited(body, unit_of(op))
    wanted = carried_nbytes(nbytes, operand if op in NARROW_ANSWERS else 0)
    if len(found) != wanted:
        raise RemoteProtocolError("answer and range differ", answer=len(found), nbytes=nbytes)
    return found
