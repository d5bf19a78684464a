"""Reads over the wire of copies at the node (ranges, rows, snapshots), and dot products."""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np

from smbox.array import as_bytes
from smbox.client.channel import Channel
from smbox.client.transfer import Call, Message, Transfer
from smbox.errors import PeerLostError, RegionFreedError, RemoteProtocolError, SmboxError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.readings import Product, Reading, RowsReading, Snapshot
from smbox.wire import operands, ops
from smbox.wire.codec import Reply
from smbox.wire.header import Buffer
from smbox.wire.messages import Create, Free, RegionBody
from smbox.wire.ops import Op, carried_nbytes

TRIES_MAX: Final = 5
"""Copies of one snapshot that are asked for, where the node loses one after the other."""

_COPIED: Final = 2
"""Units of a snapshot before the bytes of its copy."""


class Read(Transfer):
    """A read of a range into an array: copies at the node.

    Args:
        channel: of the thread that begins it.
        request: what is read.
    """

    def __init__(self, channel: Channel, request: Reading | Snapshot) -> None:
        super().__init__(channel, request.first, request.limit)
        self._address = int(request.info.address)
        self._out = as_bytes(request.out)
        self._operand = request.operand

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


class Gather(Transfer):
    """A read of rows, a portion in one request; units are rows."""

    has_ranges = False

    def __init__(self, channel: Channel, request: RowsReading) -> None:
        super().__init__(channel, request.first, request.limit)
        self._request = request

    def next_message(self) -> Message:
        """Ask for the next portion."""
        request, first = self._request, self.cut
        limit = request.portion_limit(first)
        places = request.places[first:limit].astype("<i8", copy=False)
        payload = operands.pack_gather(request.row_nbytes, places.tobytes())
        nbytes = (limit - first) * request.row_nbytes
        return Message(
            Op.GATHER,
            address=int(request.info.address) + request.begin,
            nbytes=nbytes,
            operand=request.operand,
            payload=payload,
            limit=limit,
            copied_nbytes=nbytes,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Store the rows."""
        first, limit = message.first, message.limit
        found = np.frombuffer(reply.payload, np.uint8).reshape(limit - first, -1)
        self._request.fill(first, limit, found)


class Dot(Transfer):
    """The sums of products of two ranges, which the node computes; no element travels."""

    def __init__(self, channel: Channel, request: Product) -> None:
        super().__init__(channel, request.first, request.limit)
        self._request = request

    def next_message(self) -> Message:
        """Cut the next request."""
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
        """Store the sums."""
        sums = self._request.sums
        begin = message.first // STRIPE_NBYTES - self.first // STRIPE_NBYTES
        stripes = ops.count(message.first, message.limit, STRIPE_NBYTES)
        if len(reply.payload) != stripes * sums.itemsize:
            raise RemoteProtocolError("a sum for each stripe expected", stripes=stripes)
        sums[begin : begin + stripes] = np.frombuffer(reply.payload, np.float64)


class SnapshotRead(Read):
    """A read of a range at one moment, out of a copy in a scratch region of this client's own.

    Units are one to make that region, one for the copy, the bytes of it, and one to free it.
    Where the node loses the region, all begins anew: it goes when the channel resumes.

    Args:
        channel: of the thread that begins it.
        request: what is read.
    """

    has_ranges = False  # it is of one moment only as a whole

    def __init__(self, channel: Channel, request: Snapshot) -> None:
        units = request.out.nbytes + _COPIED + 1
        super().__init__(channel, Reading(request.info, 0, units, request.out))
        self._source = int(request.info.address) + request.first
        self._copy: int | None = None  # its address
        self._last = self.limit - 1
        self._tries = 0
        self._failure: SmboxError | None = None

    def next_message(self) -> Message | None:
        """Ask for the next step; None: not before all former ones are answered."""
        if self.at < self.cut and (self._failure or not _COPIED <= self.cut < self._last):
            return None
        if self._failure is not None:
            self._leave_copy(self._failure)
        if self.cut == 0:
            return self._create()
        if self.cut == 1:
            payload = operands.pack_address(self._address)
            size = self._out.size
            return Message(
                Op.SNAPSHOT, address=self._source, nbytes=size, payload=payload, limit=_COPIED
            )
        if self.cut == self._last:
            return Message(Op.FREE, body=Free(address=self._address), limit=self.limit)
        at = self.cut - _COPIED
        message = self._ask(Op.GET, at, ops.end_of(Op.GET, at, self._out.size))
        message.limit += _COPIED
        return message

    def _create(self) -> Message:
        self._tries += 1
        token = secrets.token_bytes(16)
        body = Create(
            name=f"snapshot.{token.hex()}",
            dtype="uint8",
            shape=(self._out.size,),
            publish=False,
            scratch=True,
            token=token,
        )
        return Message(Op.CREATE, body=body, limit=1)

    def _leave_copy(self, failure: SmboxError) -> None:
        """Begin anew without the copy, if it was lost; else free it, and fail then."""
        if _lost_address(failure) not in self._held():
            self.at = self.cut = self._last
        elif self._tries < TRIES_MAX:
            self._failure, self._copy = None, None
            self.at = self.cut = 0
        else:
            message = "the node loses each copy: it is restarted, or the connection lost, often"
            self.fail(PeerLostError(message, outcome="none"))

    def _held(self) -> range:
        return range(self._address, self._address + self._out.size)

    def take(self, message: Message, reply: Reply) -> None:
        """Note where the copy will be, or store what was read of it."""
        if isinstance(reply.body, RegionBody):
            self._address = self._copy = reply.body.address
        elif _COPIED <= message.first < self._last:
            self._store(message.first - _COPIED, message.limit - _COPIED, reply.payload)

    def refused(self, message: Message, reply: Reply, done: int) -> None:  # noqa: ARG002
        """Note the failure, which is raised when the copy is freed; without one end."""
        if self._copy is None:
            self.fail(reply.raised())
        elif message.first < self._last:
            self._failure = self._failure or reply.raised()
        self.advance_to(message.limit)

    def advance_to(self, unit: int) -> None:
        """Note that all before a unit is done; what failed on the way is raised at the end."""
        super().advance_to(unit)
        if self.is_done:
            self.error = self.error or self._failure

    def cancel(self) -> None:
        """End; the copy goes as soon as the channel is used again."""
        is_open = self.is_begun and not self.is_done
        super().cancel()
        if is_open and self._copy is not None:
            self.queue.begin(Call(self.queue, Op.FREE, Free(address=self._copy)))


def _lost_address(error: SmboxError) -> object:
    return error.facts.get("address") if isinstance(error, RegionFreedError) else None
