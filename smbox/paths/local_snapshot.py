"""Snapshots on mapped memory: a range copied while all its stripes are held."""

from __future__ import annotations

from smbox.memory.hold import Hold, held_stripes, read_held
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion
from smbox.paths.lane import Lane, LaneWork
from smbox.paths.work import ByteRange, Bytes


class LocalSnapshot(LaneWork):
    """A read of a range at one moment; it holds stripes while somebody waits for it.

    Args:
        lane: of the thread that began it.
        region: mapped.
        first: byte of the region's data.
        limit: byte behind the last.
        out: ``u8[limit - first]``.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(
        self, lane: Lane, region: MappedRegion, first: int, limit: int, out: Bytes
    ) -> None:
        super().__init__(lane)
        self._region = region
        self._stripes = held_stripes(region, first, limit)
        self._first = first
        self._limit = limit
        self._out = out
        self._hold: Hold | None = None

    def step(self, writer: Writer) -> None:
        """Copy the range once all its stripes are held."""
        if self._hold is None:
            self._hold = Hold(self._region, writer.locks, self._stripes)
        read_held(self._region, self._hold, self._first, self._limit, self._out)

    def rested(self) -> None:
        """Let go of what is held; the lane's mutex is held."""
        if self._hold is not None:
            self._hold.release()

    def dropped(self) -> None:
        """Let go of what is held; the lane's mutex is held."""
        self.rested()

    def ranges_done(self) -> list[ByteRange]:
        """Name no range: it is of one moment only as a whole."""
        return []
