"""Stripes that a request keeps while it waits for the rest: those of a snapshot.

Locks belong to an open file. A request that keeps some across tries needs one of its own, or
the lane's next commit would pass through it. So each borrows an open lock file for as long as
it holds anything.
"""

from __future__ import annotations

from typing import Final

from smbox.memory.hold import Hold
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion

IDLE_MAX: Final = 2
"""Open lock files kept for the next request."""


class LockFiles:
    """The open lock files of requests that hold stripes.

    Args:
        node: name of the memory node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._idle: list[LockFile] = []

    def take(self) -> LockFile:
        """Return one that nobody else uses."""
        return self._idle.pop() if self._idle else LockFile(self._node)

    def give(self, locks: LockFile) -> None:
        """Take one back that holds no lock."""
        if len(self._idle) < IDLE_MAX:
            self._idle.append(locks)
        else:
            locks.close()

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            self._idle.pop().close()


class Holding:
    """What one request holds, over as many tries as it takes.

    Args:
        files: lend it an open lock file.
    """

    def __init__(self, files: LockFiles) -> None:
        self._files = files
        self._held: tuple[LockFile, Hold] | None = None

    def of(self, region: MappedRegion, stripes: range) -> Hold:
        """Return the hold; the same one until ``let_go``."""
        if self._held is None:
            locks = self._files.take()
            self._held = locks, Hold(region, locks, stripes)
        return self._held[1]

    def let_go(self) -> None:
        """Release what is held and give the lock file back."""
        if self._held is not None:
            locks, hold = self._held
            self._held = None
            hold.release()
            self._files.give(locks)
