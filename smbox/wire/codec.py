"""Encoding and decoding of requests and replies. Pure.

Decoding raises RemoteProtocolError (or its subclass VersionMismatchError) and nothing else.
Frames with data are passed on without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeVar

import msgspec
from msgspec.structs import astuple

from smbox.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    SmboxError,
    VersionMismatchError,
)
from smbox.wire import header, ops
from smbox.wire.header import Buffer
from smbox.wire.messages import REPLIES, REQUESTS, Body, ErrorBody
from smbox.wire.operands import PAYLOAD_NBYTES_MAX, Item, unpack_items
from smbox.wire.ops import ANSWERS, CONTROL, OP_OF, STATUS_OF, Op, Status

CONTROL_NBYTES_MAX: Final = 2 << 20
"""Bytes of a msgpack body; an error carries the answers of the commits before it."""

B = TypeVar("B", bound=Body)

_ENCODER: Final = msgspec.msgpack.Encoder()
_decoder_of: Final = cache(msgspec.msgpack.Decoder)
"""Returns the decoder of a type of body; making one takes 0.2 ms."""


class Header(msgspec.Struct):
    """The header of a message, in its order; docs/protocol.md says which fields each op uses.

    Attributes:
        request: id chosen by the client, unique within the connection.
        number: of the first commit of a change; for other ops the fence, the last number given
            out before.
        address: global address of the first byte of the range.
        nbytes: of the range; items of a BATCH; timeout in ms of a WAIT.
        scale: 8 bytes in the form of the region's dtype; see ``header.pack_scale``.
        version: in a WAIT, the version to wait for; in other requests, the number up to which
            the client has all replies; in the reply to a WAIT, the region's version, to a LEND,
            the stamp of the range, and to a SNAPSHOT, the address of the copy.
        numbers: how many numbers a change takes, one per stripe or item; in a reply the credit,
            MiB of data that the channel may have in flight from now on (0: unchanged).
        generation: of the connection; larger than that of every earlier one of the channel.
        operand: dtype code of the elements in the frames; 0: the region's.
    """

    op: Op
    kernel: int = 0
    status: Status = Status.OK
    request: int = 0
    number: int = 0
    address: int = 0
    nbytes: int = 0
    scale: bytes = header.NO_SCALE
    version: int = 0
    numbers: int = 0
    generation: int = 0
    operand: int = 0

    def pack(self) -> bytes:
        """Build the header frame.

        Raises:
            LocalProtocolError: a field does not fit its bits.
        """
        try:
            fields = astuple(self)[:12]  # without those of a subclass
            return header.LAYOUT.pack(header.MAGIC, header.PROTOCOL, *fields)
        except struct.error as error:
            raise LocalProtocolError("a header field does not fit", op=self.op) from error


class Request(Header):
    """One request.

    Attributes:
        payload: source bytes of a change, or an operand (operands.py); of a BATCH, the packed
            frame of its items.
        body: of a control op.
        items: of a BATCH.
    """

    payload: Buffer = b""
    body: Body | None = None
    items: tuple[Item, ...] = ()


class Reply(Header):
    """One reply; op, request, number, address, nbytes and operand repeat the request's.

    Attributes:
        payload: bytes read, or the answer to a change.
        body: of a control op that succeeded.
        error: set exactly when ``status`` is not OK.
    """

    payload: Buffer = b""
    body: Body | None = None
    error: ErrorBody | None = None

    def to_error(self) -> SmboxError:
        """Return the error that this refusal raises at the caller."""
        found = self.error or ErrorBody(message="no reason given")
        own = {"op": self.op.name.lower(), "request": self.request, "status": self.status.name}
        facts = own | found.facts | own  # the own facts come first, and override the node's
        return ops.error_of(self.status, found.message, facts)


def reply_to(
    request: Request,
    payload: Buffer = b"",
    *,
    version: int = 0,
    body: Body | None = None,
) -> Reply:
    """Build the reply to a request that succeeded."""
    return Reply(
        request.op,
        request=request.request,
        number=request.number,
        address=request.address,
        nbytes=request.nbytes,
        version=version,
        operand=request.operand,
        payload=payload,
        body=body,
    )


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
        request: the refused request.
        error: its message, its facts and, unless ``status`` is given, its status.
        applied: number of the last change applied on the channel.
        old: answers of the commits of this request that were applied.
        status: a status that no error class has (GAP, NO_SESSION).
    """
    reply = reply_to(request)
    reply.status = ops.status_of(error) if status is None else status
    reply.error = ErrorBody(error.message, ops.plain_facts(error), applied, old)
    return reply


def refuse_malformed(frames: Sequence[Buffer], error: RemoteProtocolError) -> Reply | None:
    """Build the reply to a message that ``decode_request`` refused; None if it has no id."""
    try:
        fields = header.unpack(frames[0] if frames else b"")
    except VersionMismatchError:
        return refuse(Request(Op.HELLO), error)
    except RemoteProtocolError:
        return None
    op = OP_OF.get(fields[2], Op.PING)
    return refuse(Request(op, request=fields[5], number=fields[6]), error)


def encode_request(request: Request) -> list[Buffer]:
    """Build the frames of a request, without a copy of its payload.

    Raises:
        LocalProtocolError: the protocol does not allow a field or the body.
    """
    head = request.pack()
    if request.op in PAYLOAD_NBYTES_MAX:
        return [head, request.payload]
    if request.op not in CONTROL:
        return [head]
    return [head, _encoded(request.body, REQUESTS[request.op])]


def decode_request(frames: Sequence[Buffer]) -> Request:
    """Decode and check the message of a client.

    Raises:
        RemoteProtocolError: docs/protocol.md does not allow the message.
    """
    head, op, body = _frames(frames)
    if head[4]:
        raise RemoteProtocolError("a request has no status", status=head[4])
    found = Request(op, head[3], Status.OK, *head[5:])
    if found.operand:
        ops.check_operand(op, found.operand)
    if op in CONTROL:
        found.body = _body(_decoder_of(REQUESTS[op]), body)
    elif op in PAYLOAD_NBYTES_MAX:
        found.payload = ops.check_length(body, PAYLOAD_NBYTES_MAX[op])
        if op is Op.BATCH:
            found.items = unpack_items(found.nbytes, found.payload)
    elif body is not None:
        raise RemoteProtocolError("one frame expected", op=op.name)
    return found


def encode_reply(reply: Reply) -> list[Buffer]:
    """Build the frames of a reply, without a copy of its payload.

    Raises:
        LocalProtocolError: the protocol does not allow a field or the body.
    """
    head = reply.pack()
    if reply.status is not Status.OK:
        return [head, _encoded(reply.error or ErrorBody(), ErrorBody)]
    if reply.op in ANSWERS:
        return [head, reply.payload]
    if reply.op not in CONTROL:
        return [head]
    return [head, _encoded(reply.body, REPLIES[reply.op])]


def decode_reply(frames: Sequence[Buffer]) -> Reply:
    """Decode and check the message of a node.

    Raises:
        RemoteProtocolError: docs/protocol.md does not allow the message.
    """
    head, op, body = _frames(frames)
    status = STATUS_OF.get(head[4], Status.ERROR)
    found = Reply(op, head[3], status, *head[5:])
    if status is not Status.OK:
        found.error = _body(_decoder_of(ErrorBody), body)
    elif op in CONTROL:
        found.body = _body(_decoder_of(REPLIES[op]), body)
    elif op in ANSWERS:
        found.payload = ops.check_answer(op, found.nbytes, found.operand, body)
    elif body is not None:
        raise RemoteProtocolError("one frame expected", op=op.name)
    return found


def _frames(frames: Sequence[Buffer]) -> tuple[header.Fields, Op, Buffer | None]:
    if not 1 <= len(frames) <= 2:
        raise RemoteProtocolError("one or two frames expected", frames=len(frames))
    head = header.unpack(frames[0])
    op = OP_OF.get(head[2])
    if op is None:
        raise RemoteProtocolError("unknown op", op=head[2])
    return head, op, frames[1] if len(frames) == 2 else None


def _body(decoder: msgspec.msgpack.Decoder[B], body: Buffer | None) -> B:
    try:
        return decoder.decode(ops.check_length(body, CONTROL_NBYTES_MAX))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError("cannot decode the body", reason=str(error)) from error


def _encoded(body: Body | None, kind: type[Body]) -> bytes:
    if type(body) is not kind:
        raise LocalProtocolError("wrong body", wanted=kind.__name__, body=type(body).__name__)
    try:
        return _ENCODER.encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError("cannot encode the body", body=type(body).__name__) from error
