"""The path of a client on the memory's own host: commits in this process, on mapped regions.

No byte of a region's data goes through the node, and the node is not told. Each thread
commits through its own writer; mapped regions are shared by all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from smbox.address import OFFSET_MAX
from smbox.errors import SmboxError
from smbox.memory.layout import RegionState
from smbox.memory.mapped import MappedRegion
from smbox.paths.base import BatchItem, Bytes, NodeInfo, Operation, RegionInfo, Sink, Work
from smbox.paths.lane import Lane, LaneWork
from smbox.paths.local_now import commit_now, read_run
from smbox.paths.local_special import LocalSpecial
from smbox.paths.local_work import LocalBatch, LocalChange, LocalFailure, LocalRead, LocalWait
from smbox.paths.proof import check_still_shared
from smbox.paths.reentry import is_mine


class LocalPath:
    """DataPath on mapped memory; docs/memory_model.md is its contract.

    Args:
        node: whose memory this process shares.
    """

    transport = "shm"

    def __init__(self, node: NodeInfo) -> None:
        self._node = node
        self._regions: dict[int, MappedRegion] = {}
        self._lanes: list[Lane] = []
        self._mutex = threading.RLock()
        self._mine = threading.local()
        self._is_closed = False
        self.special = LocalSpecial(self._lane, self._map, _begin)

    def change_now(
        self, info: RegionInfo, operation: Operation, sink: Sink | None = None
    ) -> Work | None:
        """Commit at once if no writer is in the way; see DataPath."""
        lane = self._lane()
        region = self._map(info)
        at = operation.first
        with lane.mutex:
            if not lane.queue and not lane.is_closed:
                at = commit_now(lane.writer, region, operation, sink, at)
        if at == operation.limit:
            return None
        return _begin(lane, LocalChange(lane, region, operation, sink, at))

    def read_now(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work | None:
        """Read at once if no writer is in the way; see DataPath."""
        lane = self._lane()
        region = self._map(info)
        at = first
        with lane.mutex:
            if not lane.queue and not lane.is_closed:
                at = read_run(region, first, limit, out)
        if at == limit:
            return None
        return _begin(lane, LocalRead(lane, region, first, limit, out, at))

    def change(self, info: RegionInfo, operation: Operation, sink: Sink | None) -> LaneWork:
        """Begin a change; see DataPath."""
        lane = self._lane()
        try:
            region = self._map(info)
        except SmboxError as error:
            return _begin(lane, LocalFailure(lane, error))
        return _begin(lane, LocalChange(lane, region, operation, sink, operation.first))

    def read(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> LaneWork:
        """Begin a read; see DataPath."""
        lane = self._lane()
        try:
            region = self._map(info)
        except SmboxError as error:
            return _begin(lane, LocalFailure(lane, error))
        return _begin(lane, LocalRead(lane, region, first, limit, out, first))

    def batch(self, items: Sequence[BatchItem]) -> Work:
        """Begin many changes; see DataPath."""
        works: list[LaneWork] = []
        try:
            for item in items:
                works.append(self.change(item.info, item.operation, item.sink))  # noqa: PERF401
        except BaseException:  # nobody is left who could wait for those that are in line
            for work in works:
                work.cancel()
            raise
        return LocalBatch(works)

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:  # noqa: ARG002
        """Return the region's version, at once; RegionFreedError."""
        region = self._map(info)
        region.check_usable()
        return region.version()

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait for a version; see DataPath."""
        return LocalWait(self._map(info), version, lambda: self._is_closed)

    def view(self, info: RegionInfo) -> NDArray[Any] | None:
        """Return the region's memory itself; RegionFreedError."""
        region = self._map(info)
        region.check_usable()
        return region.array()

    def flush(self, deadline_s: float) -> bool:
        """Drive what every thread has in line; see DataPath."""
        is_complete = True
        first_error: SmboxError | None = None
        for lane in self._all_lanes():
            try:
                is_complete = lane.drain(deadline_s) and is_complete
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return is_complete

    def close(self) -> None:
        """Remove this process's writers; views of regions stay valid."""
        with self._mutex:
            self._is_closed = True
            lanes, self._lanes = self._lanes, []
            self._regions.clear()
            self._mine = threading.local()
        for lane in lanes:
            lane.close()

    def abandon(self) -> None:
        """Drop all in a forked child, where other threads' mutexes may be held for ever."""
        for lane in self._lanes:
            lane.abandon()
        self._lanes = []
        self._regions = {}
        self._mine = threading.local()

    def _lane(self) -> Lane:
        try:
            lane: Lane = self._mine.lane
        except AttributeError:
            lane = self._mine.lane = self._new_lane()
        return self._inner_lane() if is_mine(lane.mutex) else lane

    def _inner_lane(self) -> Lane:
        """Return another lane for a signal handler that struck inside a call on this one."""
        mine = threading.current_thread()
        for lane in self._all_lanes():
            if lane.thread is mine and not is_mine(lane.mutex):
                return lane
        return self._new_lane()

    def _new_lane(self) -> Lane:
        lane = Lane(self._node.name)
        with self._mutex:
            left = [other for other in self._lanes if other.is_left()]
            self._lanes = [other for other in self._lanes if other not in left] + [lane]
        for other in left:
            other.close()
        return lane

    def _all_lanes(self) -> list[Lane]:
        with self._mutex:
            return list(self._lanes)

    def _map(self, info: RegionInfo) -> MappedRegion:
        region = self._regions.get(info.address)
        return self._attach(info) if region is None else region

    def _attach(self, info: RegionInfo) -> MappedRegion:
        """Map a region, and let go of those that were freed meanwhile."""
        with self._mutex:
            freed = [
                address
                for address, region in list(self._regions.items())
                if region.state == RegionState.FREED
            ]
            for address in freed:
                del self._regions[address]
            region = MappedRegion.attach(self._node.name, info.address & OFFSET_MAX)
            check_still_shared(self._node)
            return self._regions.setdefault(info.address, region)


def _begin(lane: Lane, work: LaneWork) -> LaneWork:
    """Put work in line; an interrupt here leaves nobody who would wait for it."""
    try:
        lane.begin(work)
    except BaseException:
        lane.drop(work)
        raise
    return work
