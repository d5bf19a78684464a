"""Reads over the wire: ranges, zero-copy reads, rows, dot products and snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from smbox.array import as_bytes
from smbox.client.channel import Channel
from smbox.client.transfer import Call, Message, Transfer, exact_bytes
from smbox.errors import PeerLostError, RegionFreedError, SmboxError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.reading import CHANGING
from smbox.paths.requests import ByteRange, Product, Reading, RowsReading, Snapshot
from smbox.wire import operands, ops
from smbox.wire.codec import Reply
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.messages import Free
from smbox.wire.ops import Op, carried_nbytes

TRIES_MAX: Final = 5
"""Copies of one snapshot that are requested if the node loses one after the other."""

_COPIED: Final = 1
"""Units of a snapshot before the bytes of its copy."""


class Read(Transfer):
    """A read of a range into an array; the node sends copies.

    Args:
        channel: of the thread that begins it.
        request: what is read.
    """

    def __init__(self, channel: Channel, request: Reading) -> None:
        super().__init__(channel, request.first, request.limit)
        self._address = int(request.info.address)
        self._out = as_bytes(request.out)
        self._operand = request.operand

    def next_message(self) -> Message | None:
        """Make the next request."""
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
        """Store the bytes of a reply."""
        self._store(message.first, message.limit, reply.payload)

    def _store(self, first: int, limit: int, payload: Buffer) -> None:
        begin = carried_nbytes(first - self.first, self._operand)
        end = carried_nbytes(limit - self.first, self._operand)
        self._out[begin:end] = np.frombuffer(payload, np.uint8)


class ZeroCopyRead(Read):
    """A long read of which the node makes no copy.

    The node sends the reply to a LEND from the region itself, which others may change
    meanwhile. Once all pieces have arrived, STAMPS returns their present stamps, and pieces
    whose stamp changed are read again as copies. No later request of the thread is sent before
    that: an earlier read must not see a later change of its own thread.

    Units are the bytes, one for the stamps, and one for each request that reads a torn piece
    again.

    Args:
        channel: of the thread that begins it.
        request: what is read.
        note_torn: called with the number of torn pieces and of all pieces.
    """

    has_ranges = False  # no byte is certain before the stamps are compared

    def __init__(
        self, channel: Channel, request: Reading, note_torn: Callable[[int, int], None]
    ) -> None:
        super().__init__(channel, request)
        self._end = self.limit
        self._note_torn = note_torn
        self._stamps: dict[int, int] = {}  # by first byte of a piece
        self._torn: list[ByteRange] = []
        self.limit += 2  # the torn pieces are not known yet

    def next_message(self) -> Message | None:
        """Request the next piece, or the stamps of all; None before all have arrived."""
        first = self.cut
        if first < self._end:
            return self._ask(Op.LEND, first, ops.end_of(Op.LEND, first, self._end))
        if self.at < first:
            return None
        if first == self._end:
            message = self._ask(Op.STAMPS, self.first, self._end)
        else:
            message = self._ask(Op.GET, *self._torn[first - self._end - 1])
        message.limit = first + 1
        return message

    def take(self, message: Message, reply: Reply) -> None:
        """Store the bytes of a reply, or compare the stamps."""
        first = message.first
        if first < self._end:
            self._stamps[first] = reply.version
            self._store(first, message.limit, reply.payload)
        elif first == self._end:
            self._compare(reply.payload)
        else:
            self._store(*self._torn[first - self._end - 1], reply.payload)

    def _compare(self, payload: Buffer) -> None:
        pieces = list(ops.cut(self.first, self._end, LONG_NBYTES_MAX))
        stamps = exact_bytes(payload, 8 * len(pieces)).view(np.uint64).tolist()
        torn = [
            piece
            for piece, stamp in zip(pieces, stamps, strict=True)
            if stamp == CHANGING or stamp != self._stamps[piece[0]]
        ]
        self._torn = [part for piece in torn for part in ops.cut(*piece)]
        self.limit = self._end + 1 + len(self._torn)
        self._note_torn(len(torn), len(pieces))


class Gather(Transfer):
    """A read of rows, one portion in each request; units are rows."""

    has_ranges = False

    def __init__(self, channel: Channel, request: RowsReading) -> None:
        super().__init__(channel, request.first, request.limit)
        self._request = request

    def next_message(self) -> Message:
        """Request the next portion."""
        request, first = self._request, self.cut
        limit = request.portion_limit(first)
        places = request.places[first:limit].astype("<i8", copy=False)
        nbytes = (limit - first) * request.row_nbytes
        return Message(
            Op.GATHER,
            address=int(request.info.address) + request.begin,
            nbytes=nbytes,
            operand=request.operand,
            payload=operands.pack_gather(request.row_nbytes, places.tobytes()),
            limit=limit,
            copied_nbytes=nbytes,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the rows of a reply."""
        first, limit = message.first, message.limit
        rows = np.frombuffer(reply.payload, np.uint8).reshape(limit - first, -1)
        self._request.fill(first, limit, rows)


class Dot(Transfer):
    """Sums of the products of two ranges; the node computes them and sends no elements."""

    def __init__(self, channel: Channel, request: Product) -> None:
        super().__init__(channel, request.first, request.limit)
        self._request = request

    def next_message(self) -> Message:
        """Make the next request."""
        request, first = self._request, self.cut
        limit = ops.end_of(Op.DOT, first, self.limit)
        other = int(request.other.address) + request.other_first + first - self.first
        return Message(
            Op.DOT,
            address=int(request.info.address) + first,
            nbytes=limit - first,
            payload=operands.pack_address(other),
            limit=limit,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the sums of a reply."""
        sums = self._request.sums
        begin = message.first // STRIPE_NBYTES - self.first // STRIPE_NBYTES
        stripes = ops.count(message.first, message.limit, STRIPE_NBYTES)
        found = exact_bytes(reply.payload, stripes * sums.itemsize)
        sums[begin : begin + stripes] = found.view(np.float64)


class SnapshotRead(Read):
    """A read of a range at one moment, from a copy that the node makes in a scratch region.

    Units are one for the copy, its bytes, and one to free the region. If the node loses the
    region, which it does when the channel resumes, the read starts again.

    Args:
        channel: of the thread that begins it.
        request: what is read.
    """

    has_ranges = False  # only the whole is of one moment

    def __init__(self, channel: Channel, request: Snapshot) -> None:
        units = request.out.nbytes + _COPIED + 1
        super().__init__(channel, Reading(request.info, 0, units, request.out))
        self._source = int(request.info.address) + request.first
        self._last = self.limit - 1
        self._tries = 0

    def next_message(self) -> Message | None:
        """Make the request of the next step; None before all earlier steps are answered."""
        is_reading = self.at >= _COPIED and self.cut < self._last
        if self.at < self.cut and (self.late_error or not is_reading):
            return None
        if self.late_error is not None:
            self._handle_failure(self.late_error)
        size = self._out.size
        if self.cut == 0:
            self._tries += 1
            return Message(Op.SNAPSHOT, address=self._source, nbytes=size, limit=_COPIED)
        if self.cut == self._last:
            return Message(Op.FREE, body=Free(address=self._address), limit=self.limit)
        at = self.cut - _COPIED
        message = self._ask(Op.GET, at, ops.end_of(Op.GET, at, size))
        message.limit += _COPIED
        return message

    def _handle_failure(self, failure: SmboxError) -> None:
        """Start again if the copy was lost, at most TRIES_MAX times; else free it."""
        lost = failure.facts.get("address") if isinstance(failure, RegionFreedError) else None
        if lost not in range(self._address, self._address + self._out.size):
            self.at = self.cut = self._last
        elif self._tries < TRIES_MAX:
            self.late_error = None
            self.at = self.cut = 0
        else:
            message = (
                "the node lost every copy: it restarts, or the connection breaks, too often"
            )
            self.fail(PeerLostError(message, outcome="none"))

    def take(self, message: Message, reply: Reply) -> None:
        """Note the address of the copy, or store bytes of it."""
        if message.first < _COPIED:
            self._address = reply.version
        elif message.first < self._last:
            self._store(message.first - _COPIED, message.limit - _COPIED, reply.payload)

    def refused(self, message: Message, reply: Reply, done: int) -> None:  # noqa: ARG002
        """Fail, or note the error and raise it once the copy is freed."""
        if message.first < _COPIED:
            self.fail(reply.to_error())
        elif message.first < self._last:
            self.late_error = self.late_error or reply.to_error()
        self.advance_to(message.limit)

    def cancel(self) -> None:
        """Cancel the read; the copy is freed when the channel is used again."""
        is_open = self.is_begun and not self.is_done
        super().cancel()
        if is_open and self.at >= _COPIED:
            self.queue.begin(Call(self.queue, Op.FREE, Free(address=self._address)))
