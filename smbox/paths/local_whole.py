"""Whole ranges on mapped memory: changed all or nothing, or read as at one moment."""

from __future__ import annotations

from smbox.errors import PeerLostError, RegionFreedError, SmboxError
from smbox.memory.busy import StripeBusy
from smbox.memory.commit import commits
from smbox.memory.hold import Hold
from smbox.memory.insist import insist
from smbox.memory.journal import Writer
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import ORDERS_LOADS
from smbox.memory.wide import (
    WideChange,
    commit_wide,
    finish_wide,
    is_under_way,
    read_held,
    read_wide,
)
from smbox.paths.lane import Lane, LaneWork
from smbox.paths.special import Lease
from smbox.paths.work import ByteRange, Bytes, Operation, Sink


class HeldWork(LaneWork):
    """A work that holds stripes over its tries, while somebody waits for it.

    Args:
        lane: of the thread that began it.
        region: mapped.
        stripes: which ones.
    """

    def __init__(self, lane: Lane, region: MappedRegion, stripes: range) -> None:
        super().__init__(lane)
        self._region = region
        self._stripes = stripes
        self._hold: Hold | None = None

    def rested(self) -> None:
        """Let go of what is held; the lane's mutex is held."""
        if self._hold is not None:
            self._hold.release()

    def dropped(self) -> None:
        """Let go of what is held; the lane's mutex is held."""
        self.rested()

    def ranges_done(self) -> list[ByteRange]:
        """List nothing: all or nothing."""
        return []

    def _held(self, writer: Writer) -> Hold:
        if self._hold is None:
            self._hold = Hold(self._region, writer.locks, self._stripes)
        return self._hold


class LocalWhole(HeldWork):
    """A change that is all or nothing; ``staged`` is a lease and its mapped region."""

    def __init__(
        self,
        lane: Lane,
        region: MappedRegion,
        operation: Operation,
        sink: Sink | None,
        staged: tuple[Lease, MappedRegion],
    ) -> None:
        super().__init__(lane, region, range(region.stripe_count))
        self._operation = operation
        self._sink = sink
        self._lease, self._stage = staged
        self._before: int | None = None
        self._guards: LockFile | None = None  # holds a stripe of the staging

    def step(self, writer: Writer) -> None:
        """Stage the operand once, and change all when every stripe is held."""
        try:
            self._change(writer)
            self._hand_on()
        except SmboxError:
            self._unguard()
            self._lease.drop()
            raise
        except BaseException:
            self._settle(writer)
            raise

    def _change(self, writer: Writer) -> None:
        operation = self._operation
        nbytes = operation.limit - operation.first
        if self._before is None:
            self._guard(writer)
            self._stage.data[:nbytes] = operation.source
            self._before = commits(writer)
        if self._has_begun(writer):  # an exception came through: it is not to happen again
            finish_wide(writer, self._region, self._held(writer))
            return
        change = WideChange(
            operation.first,
            operation.limit,
            operation.kernel,
            operation.scale,
            self._stage,
            0,
            None if self._sink is None else nbytes,
        )
        commit_wide(writer, self._region, self._held(writer), change)

    def _guard(self, writer: Writer) -> None:
        """Keep the node from taking the staging back before the change has ended.

        It takes back what a client has that is silent for long, which one is that waits here,
        or is stopped: not what has a stripe locked.
        """
        self._guards = writer.locks  # first: an interrupt must leave no lock behind
        if not writer.locks.try_lock(self._stage.lock_byte(0)):
            raise StripeBusy(self._stage, 0)
        try:
            self._stage.check_usable()
        except RegionFreedError as error:
            raise taken_back() from error

    def _unguard(self) -> None:
        if self._guards is not None:
            self._guards.unlock(self._stage.lock_byte(0))
            self._guards = None

    def _settle(self, writer: Writer) -> None:
        """Hand the old bytes on of what was done all the same; however often interrupted."""
        if self._has_begun(writer) and not is_under_way(writer):
            insist(self._hand_on)

    def _has_begun(self, writer: Writer) -> bool:
        return self._before is not None and (
            commits(writer) != self._before or is_under_way(writer)
        )

    def _hand_on(self) -> None:
        if self._lease.is_over:  # an interrupt came behind it: the staging is another's now
            return
        operation = self._operation
        nbytes = operation.limit - operation.first
        if self._sink is not None:
            self._sink(operation.first, operation.limit, self._stage.data[nbytes : 2 * nbytes])
        self._unguard()
        self._lease.give()

    def dropped(self) -> None:
        """Let go of what is held; the staging is not used again."""
        super().dropped()
        self._unguard()
        self._lease.drop()


def taken_back() -> PeerLostError:
    """Return the error of staging that the node has freed: nothing was changed."""
    return PeerLostError(
        "the node has taken the staging back", lost="staging", outcome="not-sent"
    )


class LocalSnapshot(HeldWork):
    """A read of a range at one moment: without locks if no commit comes between."""

    def __init__(
        self, lane: Lane, region: MappedRegion, first: int, limit: int, out: Bytes
    ) -> None:
        stripes = range(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
        if region.spec.consistency == Consistency.REGION:
            stripes = range(region.stripe_count)
        super().__init__(lane, region, stripes)
        self._first = first
        self._limit = limit
        self._out = out

    def step(self, writer: Writer) -> None:
        """Copy the range."""
        first, limit = self._first, self._limit
        self._region.check_usable()
        if (
            self._hold is None
            and ORDERS_LOADS
            and read_wide(self._region, first, limit, self._out)
        ):
            self._region.check_usable()
            return
        read_held(self._region, self._held(writer), first, limit, self._out, writer.locks)
