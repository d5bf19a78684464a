"""SNAPSHOT: a copy of a range at one moment.

All stripes of the range are held while it is copied, a slice at a time, so that the node serves
others. Locks belong to an open file: those of a snapshot are in one of its own, or the node's
next commit would pass through them. What was begun stands in the channel, and goes with it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memnode.channel import Channel, Park
from memnode.checks import check_span
from memnode.context import Context
from smbox.memory.busy import StripeBusy
from smbox.memory.hold import Hold, held_stripes
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to

SLICE_NBYTES: Final = 8 << 20

HELD_S: Final = 5.0
"""How long stripes are kept while another one is waited for; then others have their turn. A
client that has given up does not say so at once."""


def snapshot(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Copy one slice of a range, all its stripes held, into a region that the client owns.

    It takes no number: repeated, it copies again, and the client reads the copy only when it
    has been answered.
    """
    try:
        if not _copy(context, channel, request):
            return Park.SLICE
    except StripeBusy:
        raise
    except BaseException:
        channel.end_snapshot()
        raise
    channel.end_snapshot()
    return reply_to(request)


def _copy(context: Context, channel: Channel, request: Request) -> bool:
    """Do one slice; both regions are looked up each time, for they may be freed meanwhile."""
    region = context.registry.locate(request.address)
    first, nbytes = request.address - region.address, request.nbytes
    check_span(region.spec, first, nbytes)
    address = operands.unpack_address(request.payload)
    target = context.registry.owned_by(address, channel.key[0])
    begin = address - target.address
    check_span(target.spec, begin, nbytes)
    if channel.snapshot is None:
        channel.snapshot = Snapshot(
            region, first, first + nbytes, target, begin, now_s=context.now_s
        )
    return channel.snapshot.step(now_s=context.now_s)


class Snapshot:
    """A copy in the making.

    Args:
        region: what is copied.
        first: first byte of its data that is wanted.
        limit: byte behind the last.
        target: the region that takes the copy.
        begin: byte of its data where the copy begins.
        now_s: monotonic seconds.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(
        self,
        region: MappedRegion,
        first: int,
        limit: int,
        target: MappedRegion,
        begin: int,
        *,
        now_s: float,
    ) -> None:
        stripes = held_stripes(region, first, limit)
        self._region = region
        self._at, self._limit = first, limit
        self._target, self._ahead = target, begin - first
        self._locks = LockFile(region.node)
        self._hold = Hold(region, self._locks, stripes)
        self._limit_s = now_s + HELD_S

    def step(self, *, now_s: float) -> bool:
        """Copy a slice, once all stripes are held; True when all is copied.

        Raises:
            StripeBusy: another writer holds a stripe; those before it stay held, for a while.
            RegionFreedError: the region was freed.
        """
        try:
            self._hold.take()
        except StripeBusy:
            if now_s >= self._limit_s:
                self._hold.release()
                self._limit_s = now_s + HELD_S
            raise
        at, limit = self._at, min(self._at + SLICE_NBYTES, self._limit)
        out = self._target.data[at + self._ahead : limit + self._ahead]
        np.copyto(out, self._region.data[at:limit])
        self._at = limit
        return limit == self._limit

    def end(self) -> None:
        """Release the stripes."""
        self._locks.close()
