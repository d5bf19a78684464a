"""Long reads over the wire, without a copy at the node.

The node sends out of the region itself what LEND asks for, and others may change it meanwhile.
So when all has arrived the stamps of its pieces are asked for, and those that are another now
are read again as copies. Nothing that this thread asks for later is sent before that: a change
of its own must not be seen by an earlier read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from smbox.errors import RemoteProtocolError
from smbox.memory.layout import Consistency
from smbox.memory.stamps import CHANGING, joined
from smbox.paths.base import ByteRange, Bytes, RegionInfo
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.read_stream import Part
from smbox.paths.remote_work import RemoteRead
from smbox.wire import pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import (
    LONG_NBYTES_MAX,
    REQUEST_NBYTES_MAX,
    STAMPED_NBYTES_MAX,
    Buffer,
)
from smbox.wire.ops import Op
from smbox.wire.status import Status

COPIED_READS: Final = 16
"""After one that found its region restless, the next reads of the region are of copies."""

TORN_SHARE_MAX: Final = 1 / 8
"""Of the pieces of a read, read twice, that are worth it: a copy costs the node a third."""


COPIED_NBYTES: Final = 2 << 20
"""Of a long read's end, at least: half a millisecond on one host, where a round trip takes a
quarter."""

COPIED_FROM_NBYTES: Final = 8 * COPIED_NBYTES
"""The shortest read whose end is of copies."""

STAMP_NBYTES: Final = 8


class Restless:
    """Regions that are changed so often that reading them without a copy is in vain.

    Args:
        lend_from_nbytes: shorter reads are always of copies.
    """

    def __init__(self, lend_from_nbytes: float) -> None:
        self._lend_from_nbytes = lend_from_nbytes
        self._left: dict[int, int] = {}  # by address: reads that are still to be of copies

    def lends(self, nbytes: int) -> bool:
        """Tell whether so many bytes are read without a copy, unless the region is restless."""
        return self._lend_from_nbytes <= nbytes <= STAMPED_NBYTES_MAX

    def may_lend(self, info: RegionInfo, nbytes: int) -> bool:
        """Tell whether a read of so many bytes of a region is to be without a copy; counts."""
        if not self.lends(nbytes):
            return False
        if info.consistency != Consistency.STRIPE:  # it has no stamps
            return False
        left = self._left.pop(int(info.address), 0)
        if left > 1:
            self._left[int(info.address)] = left - 1
        return not left

    def note(self, info: RegionInfo, torn: int, count: int) -> None:
        """Learn that ``torn`` of ``count`` pieces had to be read again."""
        if torn > TORN_SHARE_MAX * count:
            self._left[int(info.address)] = COPIED_READS


class LentRead(RemoteRead):
    """A read of a range into an array; the Args of ``DataPath.read``, and what is restless.

    Its units are the bytes ``[first, limit)``, which are lent, but for the last of a long read;
    one for the look at the stamps; and one for each request that reads again what was torn.
    """

    def __init__(
        self,
        link: Link,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        restless: Restless,
    ) -> None:
        super().__init__(link, info, first, limit, out)
        self._info = info
        self._lent_end = _lent_end(first, limit)
        self._end = limit
        self._limit = limit + 1
        self._restless = restless
        self._lend_nbytes = LONG_NBYTES_MAX  # where LENDs are cut
        self._stamps: dict[int, int] = {}  # by first byte of what a LEND asked for
        self._torn: list[ByteRange] = []

    @property
    def has_more(self) -> bool:
        """Hold up what comes later until nothing can have to be read again."""
        return not self.is_done

    def part_from(self, unit: int) -> Part | None:
        """Return what is to be asked for at a unit; None: nothing, or not yet."""
        if unit < self._lent_end:
            limit = pieces.end_of(unit, self._lent_end, self._lend_nbytes)
            return Part(Op.LEND, unit, limit, limit)
        if unit < self._end:
            limit = pieces.end_of(unit, self._end, REQUEST_NBYTES_MAX)
            return Part(Op.GET, unit, limit, limit)
        if unit == self._end and self._at >= self._lent_end:
            return Part(Op.STAMPS, self._first, self._lent_end, unit + 1)
        if self._end < self._at and unit < self._limit:  # the look itself is over
            return Part(Op.GET, *self._torn[unit - self._end - 1], unit + 1)
        return None

    def _call(self, first: int) -> WorkCall | None:
        part = self.part_from(first)
        if part is None:
            return None
        address, nbytes = self._address + part.first, part.limit - part.first
        request = Request(part.op, address=address, nbytes=nbytes)
        return WorkCall(request, work=self, first=first, limit=part.next_unit)

    def _judge(self, call: WorkCall, reply: Reply) -> None:
        if reply.status is Status.OK and call.request.op is Op.LEND:
            self._stamps[call.first] = reply.version
        super()._judge(call, reply)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        if first == self._end:
            self._compare(payload)
            return
        if first > self._end:
            first, limit = self._torn[first - self._end - 1]
        super()._take(first, limit, payload)

    def _compare(self, payload: Buffer) -> None:
        """Find out what has to be read again, by the stamps after."""
        lent = list(pieces.cut(self._first, self._lent_end, LONG_NBYTES_MAX))
        nbytes = len(lent) * STAMP_NBYTES
        if len(payload) != nbytes:
            raise RemoteProtocolError("a stamp for each piece", nbytes=len(payload), due=nbytes)
        after = np.frombuffer(payload, np.uint64).tolist()
        before: dict[int, list[int]] = {}
        for first, stamp in self._stamps.items():
            before.setdefault(first // LONG_NBYTES_MAX, []).append(stamp)
        torn = [
            piece
            for piece, stamp in zip(lent, after, strict=True)
            if stamp == CHANGING or stamp != joined(before[piece[0] // LONG_NBYTES_MAX])
        ]
        self._torn = [part for piece in torn for part in pieces.cut(*piece)]
        self._limit = self._end + 1 + len(self._torn)
        self._restless.note(self._info, len(torn), len(lent))

    def ranges_done(self) -> list[ByteRange]:
        """List nothing: before the look at the stamps no byte is certain."""
        return []

    def outcome(self) -> str:
        """Reading changes nothing."""
        return "not-sent"


def _lent_end(first: int, limit: int) -> int:
    """Return up to where a range is lent.

    The last of a long one is read as copies: it arrives while the stamps of the others are
    looked at, which would take a round trip with nothing else under way.
    """
    if limit - first < COPIED_FROM_NBYTES:
        return limit
    return (limit - COPIED_NBYTES) // REQUEST_NBYTES_MAX * REQUEST_NBYTES_MAX
