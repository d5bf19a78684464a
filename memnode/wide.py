"""Operations on a whole range at once: WIDE changes it, SNAPSHOT copies it."""

from __future__ import annotations

from memnode.channel import Channel
from memnode.checks import check_same_elements, check_span, kernel_of, scale_from
from memnode.holding import Holding, Writers
from memnode.numbered import Commit, NumberedTask
from memnode.registry import Registry
from smbox.errors import ConfigError
from smbox.memory.busy import StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.mapped import MappedRegion
from smbox.memory.wide import WideChange, commit_wide, read_held
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to


class WideTask(NumberedTask):
    """WIDE: a change of a range of a region of consistency "region", all or nothing.

    Its operand lies at the node already. It takes one number.

    Args:
        request: a WIDE.
        channel: whose number it takes.
        registry: finds its regions.
        writer: of the lane.
        writers: lend it one that holds stripes.
    """

    def __init__(
        self,
        request: Request,
        channel: Channel,
        registry: Registry,
        writer: Writer,
        writers: Writers,
    ) -> None:
        super().__init__(request, channel, registry, writer)
        self._holding = Holding(writers)

    def abandon(self) -> None:
        """Let go of the stripes that are held."""
        self._holding.let_go()

    def _steps(self) -> list[Commit]:
        return [self._commit]

    def _commit(self, number: int) -> None:
        try:
            region = self._registry.locate(self.request.address)
            change = self._change(region)
            writer, hold = self._holding.of(region, range(region.stripe_count))
            receipt = self._channel.receipt(number, answers=False)
            commit_wide(writer, region, hold, change, receipt)
        except StripeBusy:
            raise
        except BaseException:
            self._holding.let_go()
            raise
        self._holding.let_go()

    def _change(self, region: MappedRegion) -> WideChange:
        request, spec = self.request, region.spec
        if spec.consistency != Consistency.REGION:
            raise ConfigError("only a region of consistency 'region' does", name=spec.name)
        first = request.address - region.address
        check_span(spec, first, request.nbytes)
        code = kernel_of(request.op, request.kernel)
        scale = scale_from(code, spec.dtype, request.scale)
        wide = operands.unpack_wide(request.payload)
        source = self._registry.locate(wide.source)
        check_same_elements(source.spec, spec)
        if source is region:
            raise ConfigError("the operand lies in another region", name=spec.name)
        begin = wide.source - source.address
        check_span(source.spec, begin, request.nbytes)
        old = self._old_first(wide.old, source)
        return WideChange(first, first + request.nbytes, code, scale, source, begin, old)

    def _old_first(self, address: int, source: MappedRegion) -> int | None:
        if address == 0:
            return None
        kept = self._registry.owned_by(address, self._channel.client_id)
        if kept is not source:
            raise ConfigError("operand and old bytes lie in one region", name=source.spec.name)
        old = address - source.address
        check_span(source.spec, old, self.request.nbytes)
        return old


class SnapshotTask:
    """SNAPSHOT: copies a range, all stripes held, into a region that the client owns.

    It takes no number: repeated, it copies again, and the client reads the copy only when
    it has been answered.

    Args:
        request: a SNAPSHOT.
        channel: who asks.
        registry: finds the regions.
        writers: lend it one that holds stripes.
    """

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, writers: Writers
    ) -> None:
        self.request = request
        self._channel = channel
        self._registry = registry
        self._holding = Holding(writers)

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
        writer, hold = self._holding.of(region, held_stripes(region, first, limit))
        out = target.data[begin : begin + request.nbytes]
        read_held(region, hold, first, limit, out, writer.locks)


def held_stripes(region: MappedRegion, first: int, limit: int) -> range:
    """Return the stripes to hold for a copy of ``[first, limit)``.

    Raises:
        ConfigError: nobody waits for a lock there.
    """
    consistency = region.spec.consistency
    if consistency == Consistency.NONE:
        raise ConfigError("a region without locks has no snapshots", name=region.spec.name)
    if consistency == Consistency.REGION:  # a change under way is rolled forward as a whole
        return range(region.stripe_count)
    return range(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
