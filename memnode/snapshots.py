"""SNAPSHOT: a copy of a range at one moment.

All stripes of the range are held while it is copied, a slice at a time, so that the node serves
others. What was begun stands in the channel, and goes with it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memnode.channel import Channel, Park
from memnode.checks import check_span
from memnode.context import Context
from smbox.memory.hold import Hold
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.recovery import StripeBusy
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
        is_whole = _copy(context, channel, request)
    except StripeBusy:
        raise
    except BaseException:
        channel.end_snapshot()
        raise
    if not is_whole:
        return Park.SLICE
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
    begun = channel.snapshot
    if begun is None:
        begun = channel.snapshot = Snapshot(region, first, first + nbytes, context.now_s)
    begun.hold(context.now_s)
    done, limit = begun.done, min(begun.done + SLICE_NBYTES, nbytes)
    out = target.data[begin + done : begin + limit]
    np.copyto(out, region.data[first + done : first + limit])
    begun.done = limit
    return limit == nbytes


class Snapshot:
    """What a copy in the making holds.

    Attributes:
        done: bytes that are copied.

    Args:
        region: what is copied.
        first: first byte of its data that is wanted.
        limit: byte behind the last.
        now_s: monotonic seconds.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(self, region: MappedRegion, first: int, limit: int, now_s: float) -> None:
        self.done = 0
        self._locks = LockFile(region.node)
        self._hold = Hold(region, self._locks, first, limit)
        self._limit_s = now_s + HELD_S

    def hold(self, now_s: float) -> None:
        """Hold all stripes.

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

    def end(self) -> None:
        """Release the stripes."""
        self._locks.close()
