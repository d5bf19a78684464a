"""SNAPSHOT: copies a range while all its stripes are held."""

from __future__ import annotations

from memnode.channel import Channel
from memnode.checks import check_span
from memnode.holding import Holding, LockFiles
from memnode.registry import Registry
from smbox.memory.busy import StripeBusy
from smbox.memory.hold import held_stripes, read_held
from smbox.memory.mapped import MappedRegion
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to


class SnapshotTask:
    """SNAPSHOT: copies a range, all stripes held, into a region that the client owns.

    It takes no number: repeated, it copies again, and the client reads the copy only when
    it has been answered.

    Args:
        request: a SNAPSHOT.
        channel: who asks.
        registry: finds the regions.
        lock_files: lend it one that holds stripes.
    """

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, lock_files: LockFiles
    ) -> None:
        self.request = request
        self._channel = channel
        self._registry = registry
        self._holding = Holding(lock_files)

    def advance(self) -> Reply | None:
        """Copy once all stripes are held; see ``Task``."""
        try:
            region = self._registry.locate(self.request.address)
            self._copy(region)
        except StripeBusy:
            raise
        except BaseException:
            self._holding.let_go()
            raise
        self._holding.let_go()
        request = self.request
        return reply_to(request)

    def abandon(self) -> None:
        """Let go of the stripes that are held."""
        self._holding.let_go()

    def _copy(self, region: MappedRegion) -> None:
        request = self.request
        first = request.address - region.address
        limit = first + request.nbytes
        check_span(region.spec, first, request.nbytes)
        address = operands.unpack_address(request.payload)
        target = self._registry.owned_by(address, self._channel.client_id)
        begin = address - target.address
        check_span(target.spec, begin, request.nbytes)
        hold = self._holding.of(region, held_stripes(region, first, limit))
        read_held(region, hold, first, limit, target.data[begin : begin + request.nbytes])
