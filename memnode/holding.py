"""Open lock files for those who hold stripes from one try to the next."""

from __future__ import annotations

from typing import Final

from smbox.memory.locks import LockFile

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
