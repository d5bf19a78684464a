"""Replies that say no: from an error of this side to the status and facts of a reply. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smbox.errors import RemoteProtocolError, SmboxError, VersionMismatchError
from smbox.wire import header
from smbox.wire.codec import Reply, Request
from smbox.wire.header import HEADER_NBYTES, Buffer
from smbox.wire.messages import ErrorBody
from smbox.wire.ops import OP_OF, Op
from smbox.wire.status import Status, status_of


def refuse(
    request: Request,
    error: SmboxError,
    *,
    applied: int = 0,
    old: bytes = b"",
    status: Status | None = None,
) -> Reply:
    """Build the reply that refuses ``request`` because of ``error``.

    Args:
        request: what is refused.
        error: gives message, facts and, unless told, the status.
        applied: number of the last change applied on the channel.
        old: old bytes of the commits of this request that did happen.
        status: for what no class says (GAP, NO_SESSION).
    """
    facts = {name: _plain(value) for name, value in error.facts.items()}
    return Reply(
        request.op,
        status_of(error) if status is None else status,
        request.request,
        request.number,
        request.address,
        request.nbytes,
        error=ErrorBody(message=error.message, facts=facts, applied=applied, old=old),
        operand=request.operand,
    )


def refuse_garbage(frames: Sequence[Buffer], error: RemoteProtocolError) -> Reply | None:
    """Build the reply to what ``decode_request`` refused, if it can be addressed at all."""
    if not frames or len(frames[0]) != HEADER_NBYTES:
        return None
    try:
        fields = header.unpack(frames[0])
    except VersionMismatchError:
        return refuse(Request(Op.HELLO), error)
    except RemoteProtocolError:
        return None
    return refuse(Request(OP_OF.get(fields[2], Op.PING), fields[5], fields[6]), error)


def _plain(value: object) -> Any:
    """Make a fact writable as msgpack: ints, floats, strings, None; else its text."""
    if isinstance(value, bool | float | str | None):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else str(int(value))
    return str(value)
