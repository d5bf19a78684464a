"""Rows, region to region and optimizers' steps on mapped memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smbox.errors import SmboxError
from smbox.memory.change import Change
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.reading import read_range
from smbox.memory.row_read import RowRead
from smbox.memory.update import Update, commit_update
from smbox.paths.lane import Lane, LaneWork
from smbox.paths.local_snapshot import LocalSnapshot
from smbox.paths.local_work import LocalChange, LocalFailure
from smbox.paths.special import Lease, OptimizerStep, RowsWanted
from smbox.paths.work import ByteRange, Bytes, Operation, RegionInfo, Work


class LocalSpecial:
    """SpecialPath on mapped memory.

    Args:
        lane: returns the lane of the calling thread.
        mapped: maps a region.
        begin: puts a work in line on its lane.
    """

    def __init__(
        self,
        lane: Callable[[], Lane],
        mapped: Callable[[RegionInfo], MappedRegion],
        begin: Callable[[Lane, LaneWork], LaneWork],
    ) -> None:
        self._lane = lane
        self._map = mapped
        self._begin = begin

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Begin to read rows; see SpecialPath."""
        return self._work(lambda lane: LocalRows(lane, self._map(info), wanted))

    def change_from(
        self, info: RegionInfo, operation: Operation, source: RegionInfo, source_first: int
    ) -> Work:
        """Begin a change from another region; see SpecialPath."""
        ahead = source_first - operation.first
        return self._work(
            lambda lane: LocalFrom(lane, self._map(info), operation, self._map(source), ahead)
        )

    def step(self, info: RegionInfo, step: OptimizerStep) -> Work:
        """Begin a step of an optimizer; see SpecialPath."""
        return self._work(
            lambda lane: LocalStep(
                lane, self._map(info), [self._map(each) for each in step.siblings], step
            )
        )

    def snapshot(
        self,
        info: RegionInfo,
        first: int,
        limit: int,
        out: Bytes,
        lease: Lease | None,  # noqa: ARG002 - nothing travels
    ) -> Work:
        """Begin to read a range at one moment; see SpecialPath."""
        return self._work(lambda lane: LocalSnapshot(lane, self._map(info), first, limit, out))

    def stages_snapshots(self, first: int, limit: int) -> bool:  # noqa: ARG002
        """Tell that nothing travels."""
        return False

    def _work(self, make: Callable[[Lane], LaneWork]) -> Work:
        lane = self._lane()
        try:
            work = make(lane)
        except SmboxError as error:
            work = LocalFailure(lane, error)
        return self._begin(lane, work)


class LocalRows(LaneWork):
    """A read of rows."""

    def __init__(self, lane: Lane, region: MappedRegion, wanted: RowsWanted) -> None:
        super().__init__(lane)
        self._read = RowRead(region, wanted.first, wanted.places, wanted.row_nbytes, wanted.out)

    def step(self, writer: Writer) -> None:
        """Read the rows that are left."""
        self._read.step(writer.locks)

    def ranges_done(self) -> list[ByteRange]:
        """Name no range: rows are none."""
        return []


class LocalFrom(LocalChange):
    """A change of a range by another region's bytes.

    Args:
        lane: of the thread that began it.
        region: mapped; changed.
        operation: what is done; its source is empty.
        source: mapped; read.
        ahead: where a byte's operand lies in the source: its own place, plus this.
    """

    def __init__(
        self,
        lane: Lane,
        region: MappedRegion,
        operation: Operation,
        source: MappedRegion,
        ahead: int,
    ) -> None:
        super().__init__(lane, region, operation, None, operation.first)
        self._source = source
        self._ahead = ahead

    def _run(self, writer: Writer) -> None:
        """Leave it to the single commits."""

    def _change(self, writer: Writer, piece: Piece) -> Change:
        first, limit = piece.first + self._ahead, piece.limit + self._ahead
        operand = np.empty(limit - first, np.uint8)
        read_range(self._source, first, limit, operand, writer.locks)
        return Change(self._operation.kernel, operand, self._operation.scale)


class LocalStep(LocalChange):
    """A step of an optimizer: a commit over region and state for each stripe."""

    def __init__(
        self,
        lane: Lane,
        region: MappedRegion,
        siblings: list[MappedRegion],
        step: OptimizerStep,
    ) -> None:
        gradient = step.gradient.reshape(-1)
        span = Operation("step", KernelCode.REPLACE, 1, 0, region.nbytes, np.empty(0, np.uint8))
        super().__init__(lane, region, span, None, 0)
        self._siblings = siblings
        self._step = step
        self._gradient = gradient

    def _run(self, writer: Writer) -> None:
        """Leave it to the single commits."""

    def _apply(self, writer: Writer, piece: Piece) -> None:
        itemsize = self._gradient.itemsize
        part = self._gradient[piece.first // itemsize : piece.limit // itemsize]
        update = Update(self._step.optimizer, part, self._step.parameters)
        commit_update(writer, self._region, self._siblings, piece, update)
