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
from smbox.memory.stamps import CHANGING
from smbox.paths.base import ByteRange, Bytes, RegionInfo
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_work import RemoteRead
from smbox.wire import pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import LONG_NBYTES_MAX, STAMPED_NBYTES_MAX, Buffer
from smbox.wire.ops import Op
from smbox.wire.status import Status

COPIED_READS: Final = 16
"""After one that found its region restless, the next reads of the region are of copies."""

TORN_SHARE_MAX: Final = 1 / 8
"""Of the pieces of a read, read twice, that are worth it: a copy costs the node a third."""


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
        if info.consistency != Consistency.STRIPE:  # without stamps, or to be read as a whole
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

    Its units are the bytes ``[first, limit)``, which are lent; one for the look at the stamps;
    and one for each request that reads again what was torn.
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
        self._end = limit
        self._limit = limit + 1
        self._restless = restless
        self._stamps: dict[int, int] = {}  # by first byte of a piece
        self._torn: list[ByteRange] = []

    @property
    def has_more(self) -> bool:
        """Hold up what comes later until nothing can have to be read again."""
        return not self.is_done

    def _call(self, first: int) -> WorkCall | None:
        if first >= self._limit or (first >= self._end > self._at):
            return None
        if first < self._end:
            limit = pieces.end_of(first, self._end, LONG_NBYTES_MAX)
            return self._asked(Op.LEND, (first, limit), limit)
        if first == self._end:
            return self._asked(Op.STAMPS, (self._first, self._end), first + 1)
        return self._asked(Op.GET, self._torn[first - self._end - 1], first + 1)

    def _asked(self, op: Op, part: ByteRange, limit: int) -> WorkCall:
        """Make the request whose units end at ``limit``."""
        first, end = part
        request = Request(op, address=self._address + first, nbytes=end - first)
        return WorkCall(request, work=self, first=self._next(), limit=limit)

    def _judge(self, call: WorkCall, reply: Reply) -> None:
        if reply.status is Status.OK and call.request.op is Op.LEND:
            self._stamps[call.first] = reply.version
        super()._judge(call, reply)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        if first == self._end:
            self._compare(np.frombuffer(payload, np.uint64).tolist())
            return
        if first > self._end:
            first, limit = self._torn[first - self._end - 1]
        super()._take(first, limit, payload)

    def _compare(self, found: list[int]) -> None:
        """Find out what has to be read again."""
        lent = list(pieces.cut(self._first, self._end, LONG_NBYTES_MAX))
        if len(found) != len(lent):
            raise RemoteProtocolError("a stamp for each piece", got=len(found), asked=len(lent))
        torn = [
            piece
            for piece, stamp in zip(lent, found, strict=True)
            if stamp == CHANGING or stamp != self._stamps[piece[0]]
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
