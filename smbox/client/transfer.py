"""A verb over the wire that somebody waits for; changes, and single requests.

Changes and long reads are cut at multiples of 2 MiB of their region, what is copied at the node
at multiples of 1 MiB. docs/protocol.md says what each request means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from smbox.client.channel import Channel
from smbox.client.message import Message, Transfer
from smbox.memory.kernels import KERNELS, KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.work import ByteRange, Operation, RegionInfo, Sink
from smbox.wire import ops
from smbox.wire.codec import Reply, Request
from smbox.wire.header import NO_SCALE, Buffer, pack_scale
from smbox.wire.ops import ANSWERS, Op, carried_nbytes

_CHANGES: Final = {
    KernelCode.REPLACE: Op.PUT,
    KernelCode.SCATTER_PUT: Op.PUT,
    KernelCode.ELASTIC: Op.ELASTIC,
}

Payload = Callable[[int, int], Buffer]
"""Makes the second frame of the request for ``[first, limit)``."""


def op_of(kernel: KernelCode, sink: Sink | None) -> Op:
    """Return the op that runs ``kernel``, with the old bytes in its reply for a sink."""
    if sink is None:
        return _CHANGES.get(kernel, Op.ACCUMULATE)
    return Op.ELASTIC if kernel == KernelCode.ELASTIC else Op.FETCH


def scale_of(operation: Operation, info: RegionInfo) -> bytes:
    """Write the scale of an operation as the wire wants it for the region's elements."""
    if not KERNELS[operation.kernel].has_scale:
        return NO_SCALE
    kind = info.dtype.kind
    return pack_scale(operation.scale if kind == "float" else int(operation.scale), kind[0])


class ChannelWork(Transfer):
    """A transfer that somebody waits for: ``smbox.handle.Work`` over a channel.

    Args:
        channel: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
    """

    def __init__(self, channel: Channel, first: int, limit: int) -> None:
        super().__init__(first, limit)
        self._channel = channel
        self._is_array_free = True

    def begin(self) -> None:
        """Join the channel, which sends what can be sent at once."""
        self._channel.begin(self)

    def advance(self, deadline_s: float) -> bool:
        """Drive the channel until this transfer is done; begins it, if need be."""
        if not self.is_done and not self._channel.drive(self, deadline_s):
            return False
        if self.error is not None and not self.is_over:
            self._channel.seen(self.error)
            self._is_array_free = self._channel.release()
            raise self.error
        return True

    def cancel(self) -> None:
        """Send nothing more, and read the caller's arrays no more; see ``Work``."""
        self._is_array_free = self._channel.leave(self)

    def progress(self) -> int:
        """Return how many replies have come: those before this have their turn."""
        return self._channel.answered

    def outcome(self) -> str:
        """Tell what is known of the effect; see ``Work``."""
        if self.at >= self.limit:
            return "all"
        if self.is_change and self.cut > self.at:
            return "unknown"
        return "partial" if self.ranges_done() else "none"

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is certainly done."""
        return [(self.first, self.at)] if self.at > self.first else []

    def facts(self) -> dict[str, object]:
        """Tell for how long the node has been silent, who is in the way, and what is in use."""
        facts: dict[str, object] = {"silent_s": round(self._channel.silent_s, 3)}
        facts |= self._channel.parked
        if not self._is_array_free:
            facts["array"] = "still being read: do not reuse its memory"
        return facts


class Call(ChannelWork):
    """One request that is no change.

    Attributes:
        reply: the node's, when it said yes.
        copies: how often it was sent, when the reply came.
    """

    def __init__(self, channel: Channel, request: Request) -> None:
        super().__init__(channel, 0, 1)
        self.reply: Reply | None = None
        self.copies = 0
        self._request = request

    def next_message(self) -> Message:
        """Make the request."""
        asked = self._request
        return Message(
            asked.op,
            address=asked.address,
            nbytes=asked.nbytes,
            version=asked.version,
            payload=asked.payload,
            body=asked.body,
            transfer=self,
            limit=1,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Keep the reply."""
        self.reply, self.copies = reply, message.copies

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """End."""
        self.copies = message.copies
        super().refused(message, reply, done)


class Change(ChannelWork):
    """A change of a range of a region's data: a number for every stripe.

    Args:
        channel: of the thread that begins it.
        address: of the region's first byte.
        span: first byte of its data, and the byte behind the last.
        template: op, kernel and scale of the requests.
        payload: of each request.
        sink: takes the old bytes, if the op answers.
    """

    is_change = True

    def __init__(
        self,
        channel: Channel,
        address: int,
        span: ByteRange,
        template: Request,
        payload: Payload,
        sink: Sink | None = None,
    ) -> None:
        super().__init__(channel, *span)
        self._address = address
        self._template = template
        self._payload = payload
        self._sink = sink
        self._unit = ops.unit_of(template.op)

    def next_message(self) -> Message:
        """Cut the next request."""
        first, template = self.cut, self._template
        limit = ops.end_of(first, self.limit, self._unit)
        payload = self._payload(first, limit)
        return Message(
            template.op,
            address=self._address + first,
            nbytes=limit - first,
            kernel=template.kernel,
            scale=template.scale,
            operand=template.operand,
            payload=payload,
            numbers=ops.count(first, limit, STRIPE_NBYTES),
            transfer=self,
            first=first,
            limit=limit,
            source_nbytes=len(payload),
            fills_ring=template.op in ANSWERS,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Hand on the old bytes."""
        self._hand_on(message.first, message.limit, reply.payload)

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """End, after handing on what was done before the refusal."""
        if done and reply.error is not None and not self.is_over:
            limit = min(message.limit, self.end_of(message, done))
            self._hand_on(message.first, limit, reply.error.old)
        super().refused(message, reply, done)

    def end_of(self, message: Message, done: int) -> int:
        """Return the byte behind the first ``done`` stripes."""
        return (message.first // STRIPE_NBYTES + done) * STRIPE_NBYTES

    def _hand_on(self, first: int, limit: int, old: Buffer) -> None:
        if self._sink is not None:
            self._sink(first, limit, np.frombuffer(old, np.uint8))


def change_of(
    channel: Channel, info: RegionInfo, operation: Operation, sink: Sink | None
) -> Change:
    """Make the transfer of an operation; its source is not copied."""
    op, source, begin = op_of(operation.kernel, sink), operation.source, operation.first
    is_whole, operand = KERNELS[operation.kernel].is_whole, operation.operand

    def payload(first: int, limit: int) -> Buffer:
        if is_whole:
            return source.data
        ahead, end = first - begin, limit - begin
        return source[carried_nbytes(ahead, operand) : carried_nbytes(end, operand)].data

    scale = scale_of(operation, info)
    template = Request(op, kernel=operation.kernel, scale=scale, operand=operand)
    span = operation.first, operation.limit
    return Change(channel, int(info.address), span, template, payload, sink)
