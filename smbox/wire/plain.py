"""The plain reply: most requests get it, and it is known without being taken apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from smbox.wire import header
from smbox.wire.codec import Request
from smbox.wire.header import Buffer
from smbox.wire.ops import ANSWERS

NOTHING = memoryview(b"")
VERSION_AT = 48  # the bytes of the version in a header
VERSION_END = 56


def plain_head(
    op: int,
    request: int,
    number: int,
    address: int,
    nbytes: int,
    *,
    version: int = 0,
    room: int = 0,
) -> bytes:
    """Build the header of the reply that says no more than that a request of these was done.

    A room is told after long requests only, and a version of what is lent.
    """
    return header.pack(
        op,
        request=request,
        number=number,
        address=address,
        nbytes=nbytes,
        version=version,
        numbers=room,
    )


def expected_head(request: Request) -> bytes:
    """Build the header that the plain reply to a request has."""
    number, address, nbytes = request.number, request.address, request.nbytes
    return plain_head(request.op, request.request, number, address, nbytes)


def plain_payload(request: Request, head: bytes, frames: Sequence[Buffer]) -> Buffer | None:
    """Return what the plain reply in ``frames`` brings; None: they are another message.

    Args:
        request: as it was sent.
        head: its ``expected_head``.
        frames: a message of the node.
    """
    if frames[0] != head:
        return None
    if request.op not in ANSWERS:
        return NOTHING if len(frames) == 1 else None
    return frames[1] if len(frames) == 2 and len(frames[1]) == request.nbytes else None


def plain_version(head: bytes, nbytes: int | None, frames: Sequence[Buffer]) -> int | None:
    """Return the version in the plain reply to a read; None: ``frames`` are another message.

    Args:
        head: the GET, LEND or STAMPS as it was sent: its reply says the same, but for that.
        nbytes: that were asked for; None: as many as there are.
        frames: a message of the node; the plain reply's second frame is the bytes.
    """
    if len(frames) != 2 or nbytes not in (None, len(frames[1])):
        return None
    told = bytes(frames[0])
    if told[:VERSION_AT] != head[:VERSION_AT] or told[VERSION_END:] != head[VERSION_END:]:
        return None
    return int.from_bytes(told[VERSION_AT:VERSION_END], "little")
