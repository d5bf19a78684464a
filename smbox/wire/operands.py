"""The second frames that have a form of their own: GATHER, FROM, UPDATE, SNAPSHOT. Pure.

Fixed words, little-endian, and where there is more, bytes behind them:

    GATHER    row_nbytes u64 | place i64[count]
    FROM      source address u64
    UPDATE    siblings u64 | sibling address u64[3] | parameter f64[4] | gradient
    SNAPSHOT  target address u64
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from smbox.errors import LocalProtocolError, RemoteProtocolError
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer

PLACE_NBYTES: Final = 8
SIBLINGS_MAX: Final = 3
PARAMETERS_MAX: Final = 4

_GATHER: Final = struct.Struct("<Q")
_ADDRESS: Final = struct.Struct("<Q")
_UPDATE: Final = struct.Struct("<Q3Q4d")

UPDATE_HEAD_NBYTES: Final = _UPDATE.size
OPERAND_NBYTES_MAX: Final = REQUEST_NBYTES_MAX + UPDATE_HEAD_NBYTES
"""Bytes of an operand's frame: a request's data and the words before it."""

PLACES_MAX: Final = (REQUEST_NBYTES_MAX - _GATHER.size) // PLACE_NBYTES
"""Rows that one GATHER may name."""


class Gather(NamedTuple):
    """Which rows are wanted.

    Attributes:
        row_nbytes: of each row, at least 1.
        places: ``i64[count]`` as bytes: rows from the request's address on.
    """

    row_nbytes: int
    places: Buffer


class Update(NamedTuple):
    """A step of a server-side optimizer on the request's range.

    Attributes:
        siblings: addresses of the regions that hold its state, in its table's order.
        parameters: four numbers; the optimizer uses the first few.
        gradient: as many elements as the range has.
    """

    siblings: tuple[int, ...]
    parameters: tuple[float, ...]
    gradient: Buffer


def pack_gather(row_nbytes: int, places: Buffer) -> bytes:
    """Write the operand of a GATHER; ``places`` are the bytes of ``i64[count]``."""
    return _GATHER.pack(row_nbytes) + places


def unpack_gather(operand: Buffer, nbytes: int) -> Gather:
    """Take the operand of a GATHER apart.

    Args:
        operand: as it came.
        nbytes: of the answer, as the header says.

    Raises:
        RemoteProtocolError: no whole places, or the answer is not as long as its rows.
    """
    view = memoryview(operand)
    if len(view) < _GATHER.size or (len(view) - _GATHER.size) % PLACE_NBYTES:
        raise RemoteProtocolError("no whole places", nbytes=len(view))
    (row_nbytes,) = _GATHER.unpack_from(view)
    count = (len(view) - _GATHER.size) // PLACE_NBYTES
    if count * row_nbytes != nbytes or not 0 < nbytes <= REQUEST_NBYTES_MAX:
        raise RemoteProtocolError("rows and answer differ", rows=count, nbytes=nbytes)
    return Gather(row_nbytes, view[_GATHER.size :])


def pack_address(address: int) -> bytes:
    """Write the operand of a FROM or a SNAPSHOT."""
    return _ADDRESS.pack(address)


def unpack_address(operand: Buffer) -> int:
    """Read the operand of a FROM or a SNAPSHOT.

    Raises:
        RemoteProtocolError: it is not one address.
    """
    if len(operand) != _ADDRESS.size:
        raise RemoteProtocolError("one address expected", nbytes=len(operand))
    (address,) = _ADDRESS.unpack(operand)
    return int(address)


def pack_update(
    siblings: Sequence[int], parameters: Sequence[float], gradient: Buffer
) -> bytes:
    """Write the operand of an UPDATE.

    Raises:
        LocalProtocolError: too many siblings or parameters.
    """
    if len(siblings) > SIBLINGS_MAX or len(parameters) > PARAMETERS_MAX:
        raise LocalProtocolError("too much for an update", siblings=len(siblings))
    addresses = [*siblings, *[0] * (SIBLINGS_MAX - len(siblings))]
    numbers = [*parameters, *[0.0] * (PARAMETERS_MAX - len(parameters))]
    return b"".join([_UPDATE.pack(len(siblings), *addresses, *numbers), gradient])


def unpack_update(operand: Buffer, gradient_nbytes: int) -> Update:
    """Take the operand of an UPDATE apart; the gradient is a view of it.

    Raises:
        RemoteProtocolError: another length than the gradient's, or more siblings than there
            can be.
    """
    view = memoryview(operand)
    if len(view) != _UPDATE.size + gradient_nbytes:
        raise RemoteProtocolError("gradient and range differ", nbytes=len(view))
    count, *words = _UPDATE.unpack_from(view)
    if count > SIBLINGS_MAX:
        raise RemoteProtocolError("too many siblings", siblings=count)
    return Update(tuple(words[:count]), tuple(words[SIBLINGS_MAX:]), view[_UPDATE.size :])
