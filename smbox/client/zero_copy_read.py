"""Long reads over the wire, without a copy at the node.

The node sends out of the region itself what LEND asks for, and others may change it meanwhile.
So when all has arrived, the stamps of its pieces are asked for, and those that changed are read
again as copies. Nothing that this thread asks for later is sent before that: a change of its
own must not be seen by an earlier read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from smbox.client.channel import Channel
from smbox.client.reads import Read
from smbox.client.transfer import Message
from smbox.errors import RemoteProtocolError
from smbox.memory.layout import Consistency
from smbox.memory.reading import CHANGING
from smbox.paths.readings import Reading
from smbox.paths.work import ByteRange, RegionInfo
from smbox.wire import ops
from smbox.wire.codec import Reply
from smbox.wire.header import LONG_NBYTES_MAX, STAMPED_NBYTES_MAX, Buffer
from smbox.wire.ops import Op

STAMP_NBYTES: Final = 8

COPIED_READS: Final = 16
"""After a read that found its region restless, the next reads of the region are of copies."""

TORN_SHARE_MAX: Final = 1 / 8
"""Of the pieces of a read, read twice, that are worth it: a copy costs the node a third."""


class ContendedRegions:
    """Regions that are changed so often that reading them without a copy is in vain.

    Args:
        lend_from_nbytes: shorter reads are always of copies.
    """

    def __init__(self, lend_from_nbytes: float) -> None:
        self._lend_from_nbytes = lend_from_nbytes
        self._copied_reads: dict[
            int, int
        ] = {}  # by address: reads that are still to be of copies

    def allows_zero_copy(self, reading: Reading) -> bool:
        """Tell whether what is read now goes without a copy; the path asks before each read."""
        info, nbytes = reading.info, reading.limit - reading.first
        left = self._copied_reads.pop(int(info.address), 0)
        if left > 1:
            self._copied_reads[int(info.address)] = left - 1
        return (
            not (left or reading.operand)
            and self._lend_from_nbytes <= nbytes <= STAMPED_NBYTES_MAX
            and info.consistency == Consistency.STRIPE  # others have no stamps
        )

    def note_torn(self, info: RegionInfo, torn: int, count: int) -> None:
        """Learn that ``torn`` of ``count`` pieces had to be read again."""
        if torn > TORN_SHARE_MAX * count:
            self._copied_reads[int(info.address)] = COPIED_READS


class ZeroCopyRead(Read):
    """A read of a range into an array, without a copy at the node.

    Units are the bytes; one for the look at the stamps; and one for each request that reads
    again what was torn.
    """

    has_ranges = False  # before the look at the stamps no byte is certain

    def __init__(self, channel: Channel, request: Reading, contended: ContendedRegions) -> None:
        super().__init__(channel, request)
        self._info = request.info
        self._end = self.limit
        self._contended = contended
        self._stamps: dict[int, int] = {}  # by first byte of a piece
        self._torn: list[ByteRange] = []
        self.limit += 2  # what is torn is not known yet

    def next_message(self) -> Message | None:
        """Ask for the next piece, or for the stamps of all; None: not all has arrived."""
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
        """Store what was read, or find out what has to be read again."""
        first = message.first
        if first < self._end:
            self._stamps[first] = reply.version
            self._store(first, message.limit, reply.payload)
        elif first == self._end:
            self._compare(reply.payload)
        else:
            self._store(*self._torn[first - self._end - 1], reply.payload)

    def _compare(self, payload: Buffer) -> None:
        lent = list(ops.cut(self.first, self._end, LONG_NBYTES_MAX))
        if len(payload) != STAMP_NBYTES * len(lent):
            raise RemoteProtocolError("a stamp for each piece", nbytes=len(payload))
        stamps = np.frombuffer(payload, np.uint64).tolist()
        torn = [
            piece
            for piece, stamp in zip(lent, stamps, strict=True)
            if stamp == CHANGING or stamp != self._stamps[piece[0]]
        ]
        self._torn = [part for piece in torn for part in ops.cut(*piece)]
        self.limit = self._end + 1 + len(self._torn)
        self._contended.note_torn(self._info, len(torn), len(lent))
