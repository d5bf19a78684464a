"""Reads and waits on memory that this process maps."""

from __future__ import annotations

from collections.abc import Callable

from smbox.errors import PeerLostError, SmboxError
from smbox.memory.hold import Hold, held_stripes, read_held
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.pause import Pause
from smbox.paths.special import RowsWanted
from smbox.paths.work import ByteRange, Bytes, Waiting


class LocalRead(LocalWork):
    """A read of a range; ``out`` holds as many elements, of the operand's type."""

    __slots__ = ("_done", "_first", "_limit", "_operand", "_out", "_region")

    def __init__(
        self,
        queue: LocalQueue,
        region: MappedRegion,
        first: int,
        limit: int,
        out: Bytes,
        operand: int = 0,
    ) -> None:
        super().__init__(queue)
        self._region = region
        self._first = first
        self._limit = limit
        self._out = out
        self._operand = operand
        self._done = 0

    def step(self, queue: LocalQueue) -> None:
        """Read what is left."""
        reader = queue.reader
        try:
            reader.read(
                self._region,
                self._first,
                self._limit,
                self._out,
                operand=self._operand,
                done=self._done,
            )
        finally:
            self._done = reader.done

    def ranges_done(self) -> list[ByteRange]:
        """List the range read so far."""
        return [(self._first, self._first + self._done)] if self._done else []


class LocalRows(LocalWork):
    """A read of rows."""

    __slots__ = ("_done", "_region", "_wanted")

    def __init__(self, queue: LocalQueue, region: MappedRegion, wanted: RowsWanted) -> None:
        super().__init__(queue)
        self._region = region
        self._wanted = wanted
        self._done = 0

    def step(self, queue: LocalQueue) -> None:
        """Read the rows that are left."""
        wanted = self._wanted
        try:
            queue.reader.read_rows(
                self._region,
                wanted.first,
                wanted.places,
                wanted.row_nbytes,
                wanted.out.reshape(-1),
                done=self._done,
            )
        finally:
            self._done = queue.reader.done


class LocalSnapshot(LocalWork):
    """A read of a range at one moment; it holds stripes while somebody waits for it.

    Raises:
        ConfigError: the region has no locks.
    """

    __slots__ = ("_first", "_hold", "_limit", "_locks", "_out", "_region")

    def __init__(
        self, queue: LocalQueue, region: MappedRegion, first: int, limit: int, out: Bytes
    ) -> None:
        super().__init__(queue)
        self._region = region
        self._first = first
        self._limit = limit
        self._out = out
        # An open file of its own: the thread's other requests would pass through its locks.
        self._locks = LockFile(region.node)
        self._hold = Hold(region, self._locks, held_stripes(region, first, limit))

    def step(self, queue: LocalQueue) -> None:  # noqa: ARG002 - LocalWork's form
        """Copy the range once all its stripes are held."""
        read_held(self._region, self._hold, self._first, self._limit, self._out)

    def rested(self) -> None:
        """Release what is held."""
        self._hold.release()


class LocalFailure(LocalWork):
    """A request that cannot even begin; it fails when its turn comes."""

    __slots__ = ("_reason",)

    def __init__(self, queue: LocalQueue, reason: SmboxError) -> None:
        super().__init__(queue)
        self._reason = reason

    def step(self, queue: LocalQueue) -> None:  # noqa: ARG002 - LocalWork's form
        """Fail."""
        raise self._reason


class LocalWait(Waiting):
    """A wait for a region's version; polls, because a local writer tells nobody.

    Args:
        region: mapped.
        version: that is waited for.
        is_closed: tells whether the box was closed.
    """

    is_done = False

    def __init__(
        self, region: MappedRegion, version: int, is_closed: Callable[[], bool]
    ) -> None:
        self._region = region
        self._version = version
        self._is_closed = is_closed

    def advance(self, deadline_s: float) -> bool:
        """Look at the version until it is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
            PeerLostError: the box was closed meanwhile.
        """
        pause = Pause()
        while True:
            if self._is_closed():
                raise PeerLostError("the box was closed", outcome="none")
            self._region.check_usable()
            if self._region.version() >= self._version:
                return True
            if not pause.sleep(deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Tell how far the region is."""
        return {"version": self._region.version(), "wanted": self._version}

    def cancel(self) -> None:
        """Nothing to stop."""
