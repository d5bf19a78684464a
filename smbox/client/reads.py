"""Reads over the wire of copies at the node (ranges, rows, snapshots), and dot products."""

from __future__ import annotations

import numpy as np

from smbox.client.channel import Channel
from smbox.client.message import Message
from smbox.client.transfer import Call, ChannelWork
from smbox.errors import PeerLostError, RegionFreedError, RemoteProtocolError, SmboxError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.work import ByteRange, Bytes, Lease, RegionInfo, RowsWanted, Sums
from smbox.wire import operands, ops
from smbox.wire.codec import Reply
from smbox.wire.header import Buffer
from smbox.wire.messages import Free
from smbox.wire.ops import Op, carried_nbytes


class Read(ChannelWork):
    """A read of a range into an array: copies at the node."""

    def __init__(
        self, channel: Channel, info: RegionInfo, span: ByteRange, out: Bytes, operand: int = 0
    ) -> None:
        super().__init__(channel, *span)
        self._address = int(info.address)
        self._out = out
        self._operand = operand

    def next_message(self) -> Message | None:
        """Cut the next request."""
        return self._ask(Op.GET, self.cut, ops.end_of(Op.GET, self.cut, self.limit))

    def _ask(self, op: Op, first: int, limit: int) -> Message:
        nbytes = limit - first
        return Message(
            op,
            address=self._address + first,
            nbytes=nbytes,
            operand=self._operand,
            limit=limit,
            copied_nbytes=nbytes if op is Op.GET else 0,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store what was read."""
        self._store(message.first, message.limit, reply.payload)

    def _store(self, first: int, limit: int, payload: Buffer) -> None:
        begin = carried_nbytes(first - self.first, self._operand)
        end = carried_nbytes(limit - self.first, self._operand)
        self._out[begin:end] = np.frombuffer(payload, np.uint8)


class Gather(ChannelWork):
    """A read of rows, a portion in one request; units are rows."""

    has_ranges = False

    def __init__(self, channel: Channel, info: RegionInfo, wanted: RowsWanted) -> None:
        super().__init__(channel, 0, wanted.places.size)
        self._address = int(info.address) + wanted.first
        self._wanted = wanted

    def next_message(self) -> Message:
        """Ask for the next portion."""
        wanted, first = self._wanted, self.cut
        limit = wanted.portion_limit(first)
        places = wanted.places[first:limit].astype("<i8", copy=False)
        payload = operands.pack_gather(wanted.row_nbytes, places.tobytes())
        nbytes = (limit - first) * wanted.row_nbytes
        return Message(
            Op.GATHER,
            address=self._address,
            nbytes=nbytes,
            operand=wanted.operand,
            payload=payload,
            limit=limit,
            copied_nbytes=nbytes,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the rows."""
        first, limit = message.first, message.limit
        found = np.frombuffer(reply.payload, np.uint8).reshape(limit - first, -1)
        self._wanted.fill(first, limit, found)


class Dot(ChannelWork):
    """The sums of products of two ranges, which the node computes; no element travels.

    Args:
        channel: of the thread that begins it.
        info: the region.
        span: first byte of its data, and the byte behind the last.
        other: address of the other range.
        sums: receives one sum for each stripe of the span.
    """

    def __init__(
        self, channel: Channel, info: RegionInfo, span: ByteRange, other: int, sums: Sums
    ) -> None:
        super().__init__(channel, *span)
        self._address = int(info.address)
        self._ahead = other - span[0]
        self._sums = sums

    def next_message(self) -> Message:
        """Cut the next request."""
        first, limit = self.cut, ops.end_of(Op.DOT, self.cut, self.limit)
        return Message(
            Op.DOT,
            address=self._address + first,
            nbytes=limit - first,
            payload=operands.pack_address(self._ahead + first),
            limit=limit,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the sums."""
        begin = message.first // STRIPE_NBYTES - self.first // STRIPE_NBYTES
        stripes = ops.count(message.first, message.limit, STRIPE_NBYTES)
        if len(reply.payload) != stripes * self._sums.itemsize:
            raise RemoteProtocolError("a sum for each stripe expected", stripes=stripes)
        self._sums[begin : begin + stripes] = np.frombuffer(reply.payload, np.float64)


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

    has_ranges = False  # it is of one moment only as a whole

    def __init__(
        self, channel: Channel, info: RegionInfo, span: ByteRange, out: Bytes, lease: Lease
    ) -> None:
        super().__init__(channel, lease.info, (0, out.size + 1), out)
        self._source = int(info.address) + span[0]
        self._lease = lease

    def next_message(self) -> Message | None:
        """Ask for the copy, and then for its bytes."""
        if self.cut == 0:
            payload = operands.pack_address(self._address)
            nbytes = self._out.size
            return Message(
                Op.SNAPSHOT, address=self._source, nbytes=nbytes, payload=payload, limit=1
            )
        if self.at == 0:
            return None
        at = self.cut - 1
        message = self._ask(Op.GET, at, ops.end_of(Op.GET, at, self._out.size))
        message.limit += 1
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
                outcome="none",
            )
        self.fail(error)

    def fail(self, error: SmboxError) -> None:
        """End; nobody uses that copy again."""
        super().fail(error)
        self._lease.drop()

    def cancel(self) -> None:
        """End; the copy goes as soon as the channel is used again."""
        is_open = self.is_begun and not self.is_done and not self.is_left
        super().cancel()
        self._lease.drop()
        if is_open:
            self._channel.begin(Call(self._channel, Op.FREE, Free(address=self._address)))
