"""From a verb to requests and back: what each kind of verb asks for, and takes.

Changes and long reads are cut at multiples of 2 MiB of their region, what is copied at the node
at multiples of 1 MiB. docs/protocol.md says what each request means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from smbox.client.channel import Channel
from smbox.client.message import Message, Transfer
from smbox.errors import PeerLostError, RegionFreedError, SmboxError
from smbox.memory.kernels import KERNELS, KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.base import BatchItem
from smbox.paths.special import Lease, RowsWanted
from smbox.paths.work import ByteRange, Bytes, Operation, RegionInfo, Sink
from smbox.wire import batch, operands, pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import (
    NO_SCALE,
    REQUEST_NBYTES_MAX,
    Buffer,
    pack_scale,
)
from smbox.wire.messages import Free
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
        self._unit = pieces.unit_of(template.op)

    def next_message(self) -> Message:
        """Cut the next request."""
        first, template = self.cut, self._template
        limit = pieces.end_of(first, self.limit, self._unit)
        payload = self._payload(first, limit)
        return Message(
            template.op,
            address=self._address + first,
            nbytes=limit - first,
            kernel=template.kernel,
            scale=template.scale,
            operand=template.operand,
            payload=payload,
            numbers=pieces.count(first, limit, STRIPE_NBYTES),
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


class Read(ChannelWork):
    """A read of a range into an array: copies at the node."""

    def __init__(
        self,
        channel: Channel,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        operand: int = 0,
    ) -> None:
        super().__init__(channel, first, limit)
        self._address = int(info.address)
        self._out = out
        self._operand = operand

    def next_message(self) -> Message | None:
        """Cut the next request."""
        return self._get(self.cut, pieces.end_of(self.cut, self.limit, REQUEST_NBYTES_MAX))

    def _get(self, first: int, limit: int) -> Message:
        nbytes = limit - first
        return Message(
            Op.GET,
            address=self._address + first,
            nbytes=nbytes,
            operand=self._operand,
            transfer=self,
            first=first,
            limit=limit,
            copied_nbytes=nbytes,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store what was read."""
        self._store(message.first, message.limit, reply.payload)

    def _store(self, first: int, limit: int, payload: Buffer) -> None:
        begin = carried_nbytes(first - self.first, self._operand)
        end = carried_nbytes(limit - self.first, self._operand)
        self._out[begin:end] = np.frombuffer(payload, np.uint8)


class Gather(ChannelWork):
    """A read of rows, as many in one request as its answer holds; units are rows."""

    def __init__(self, channel: Channel, info: RegionInfo, wanted: RowsWanted) -> None:
        super().__init__(channel, 0, wanted.places.size)
        self._address = int(info.address) + wanted.first
        self._wanted = wanted
        self._rows = min(REQUEST_NBYTES_MAX // wanted.row_nbytes, operands.PLACES_MAX)

    def next_message(self) -> Message:
        """Ask for as many rows as the answer holds."""
        wanted, first = self._wanted, self.cut
        limit = min(self.limit, first + self._rows)
        places = wanted.places[first:limit].astype("<i8", copy=False)
        payload = operands.pack_gather(wanted.row_nbytes, places.tobytes())
        nbytes = (limit - first) * wanted.row_nbytes
        return Message(
            Op.GATHER,
            address=self._address,
            nbytes=nbytes,
            payload=payload,
            transfer=self,
            first=first,
            limit=limit,
            source_nbytes=len(payload),
            copied_nbytes=nbytes,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the rows."""
        first, limit = message.first, message.limit
        found = np.frombuffer(reply.payload, np.uint8).reshape(limit - first, -1)
        self._wanted.out[first:limit] = found

    def outcome(self) -> str:
        """Rows are no range: all of them, or none."""
        return "all" if self.at >= self.limit else "none"

    def ranges_done(self) -> list[ByteRange]:
        """Name no range."""
        return []


class Snapshot(Read):
    """A read of a range at one moment: a copy at the node, which is then read.

    Units are 0 for the copy, and then the bytes of it.

    Args:
        channel: of the thread that begins it.
        info: the region.
        span: first byte of its data, and the byte behind the last.
        out: ``u8[nbytes of the span]``.
        lease: of a region of this client as large as the span; ends with this transfer.
    """

    def __init__(
        self, channel: Channel, info: RegionInfo, span: ByteRange, out: Bytes, lease: Lease
    ) -> None:
        super().__init__(channel, lease.info, 0, out.size + 1, out)
        self._source = int(info.address) + span[0]
        self._lease = lease

    def next_message(self) -> Message | None:
        """Ask for the copy, and then for its bytes."""
        if self.cut == 0:
            payload = operands.pack_address(self._address)
            nbytes = self._out.size
            return Message(
                Op.SNAPSHOT,
                address=self._source,
                nbytes=nbytes,
                payload=payload,
                transfer=self,
                limit=1,
            )
        if self.at == 0:
            return None
        at = self.cut - 1
        message = self._get(at, pieces.end_of(at, self._out.size, REQUEST_NBYTES_MAX))
        message.first, message.limit = message.first + 1, message.limit + 1
        return message

    def take(self, message: Message, reply: Reply) -> None:
        """Store what was read; the lease ends with the last of it."""
        if message.first:
            self._store(message.first - 1, message.limit - 1, reply.payload)
        if message.limit == self.limit:
            self._lease.give()

    def refused(self, message: Message, reply: Reply, done: int) -> None:  # noqa: ARG002
        """End; the node may have taken the copy back, which is no error of the region."""
        error = reply.raised()
        if isinstance(error, RegionFreedError) and self._lease.holds(
            error.facts.get("address")
        ):
            error = PeerLostError(
                "the node has lost the copy: it was restarted, or we were silent",
                lost="staging",
                outcome="not-sent",
            )
        self.fail(error)

    def fail(self, error: SmboxError) -> None:
        """End; nobody uses that copy again."""
        super().fail(error)
        self._lease.drop()

    def cancel(self) -> None:
        """End; the copy goes as soon as the channel is used again."""
        is_begun = self.is_begun and not self.is_done
        super().cancel()
        self._lease.drop()
        if is_begun:
            request = Request(Op.FREE, body=Free(address=self._address))
            self._channel.begin(Call(self._channel, request))

    def outcome(self) -> str:
        """It is of one moment only as a whole."""
        return "all" if self.at >= self.limit else "none"

    def ranges_done(self) -> list[ByteRange]:
        """Name no range."""
        return []


class Batch(ChannelWork):
    """Changes in order, many in each request; the first refusal is raised, the others run.

    Units are items. A request ends at a refused item; what follows it is cut anew.

    Args:
        channel: of the thread that begins it.
        items: each within one stripe.
    """

    is_change = True

    def __init__(self, channel: Channel, items: Sequence[BatchItem]) -> None:
        super().__init__(channel, 0, len(items))
        self._items = items
        self._taken = 0  # items whose old bytes are handed on
        self._refusals: set[int] = set()
        self._first_error: SmboxError | None = None

    def next_message(self) -> Message:
        """Pack as many items as fit into one request."""
        first = self.cut
        items = tuple(self._fitting(first))
        answers = batch.answers_nbytes(items)
        source = sum(len(item.source) for item in items)
        return Message(
            Op.BATCH,
            nbytes=len(items),
            payload=batch.pack_items(items),
            items=items,
            numbers=len(items),
            transfer=self,
            first=first,
            limit=first + len(items),
            source_nbytes=source,
            copied_nbytes=answers and answers + source,
            fills_ring=answers > 0,
        )

    def _fitting(self, first: int) -> Iterator[batch.Item]:
        sources = answers = REQUEST_NBYTES_MAX
        for item in self._items[first : first + batch.ITEMS_MAX]:
            packed = _packed(item)
            sources -= len(packed.source)
            answers -= packed.answer_nbytes
            if min(sources, answers) < 0:
                return
            yield packed

    def take(self, message: Message, reply: Reply) -> None:
        """Hand on the old bytes, item by item."""
        self._hand_on(message.first, message.limit, reply.payload)

    def _hand_on(self, first: int, limit: int, payload: Buffer) -> None:
        at = 0
        old = np.frombuffer(payload, np.uint8)
        for index, item in enumerate(self._items[first:limit], first):
            if item.sink is None:
                continue
            nbytes = _packed(item).answer_nbytes
            if index >= self._taken:
                item.sink(item.operation.first, item.operation.limit, old[at : at + nbytes])
                self._taken = index + 1
            at += nbytes

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """Go on behind the refused change; what it was refused for is raised at the end."""
        at = message.first + done
        if reply.error is not None and not self.is_over:
            self._hand_on(message.first, at, reply.error.old)
        self._refusals.add(at)
        self._first_error = self._first_error or reply.raised()
        self.advance_to(at + 1)
        self.rewind(self.at)

    def advance_to(self, unit: int) -> None:
        """Note that all before an item is done; a refusal is raised once all are."""
        super().advance_to(unit)
        if self.is_done:
            self.error = self.error or self._first_error

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges that are certainly done, change by change."""
        done = (n for n in range(self.at) if n not in self._refusals)
        operations = [self._items[index].operation for index in done]
        return [(operation.first, operation.limit) for operation in operations]

    def outcome(self) -> str:
        """Tell what is known of the effect of the changes that were not refused."""
        found = super().outcome()
        return "partial" if found == "all" and self._refusals else found


def change_of(
    channel: Channel, info: RegionInfo, operation: Operation, sink: Sink | None
) -> Change:
    """Make the transfer of an operation; its source is not copied."""
    op, source, begin = op_of(operation.kernel, sink), operation.source, operation.first
    is_whole = KERNELS[operation.kernel].is_whole

    operand = operation.operand

    def payload(first: int, limit: int) -> Buffer:
        if is_whole:
            return source.data
        ahead, end = first - begin, limit - begin
        return source[carried_nbytes(ahead, operand) : carried_nbytes(end, operand)].data

    scale = scale_of(operation, info)
    template = Request(op, kernel=operation.kernel, scale=scale, operand=operand)
    span = operation.first, operation.limit
    return Change(channel, int(info.address), span, template, payload, sink)


def _packed(item: BatchItem) -> batch.Item:
    operation = item.operation
    return batch.Item(
        op_of(operation.kernel, item.sink),
        operation.kernel,
        int(item.info.address) + operation.first,
        operation.limit - operation.first,
        operation.source.data,  # copied into the frame, and not read again
        scale_of(operation, item.info),
        operation.operand,
    )
