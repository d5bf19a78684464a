"""Stripes that a request keeps while it waits for the rest: region-wide changes and copies.

Locks belong to an open file. A request that keeps some across tries needs one of its own, or
the lane's next commit would pass through it. So each borrows a writer, with its journal slot
and its locks, for as long as it holds anything.
"""

from __future__ import annotations

from typing import Final

from smbox.memory.hold import Hold
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion

IDLE_MAX: Final = 2
"""Writers kept for the next request; each has a slot of 2 MiB."""


class Writers:
    """The writers of requests that hold stripes.

    Args:
        node: name of the memory node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._idle: list[Writer] = []

    def take(self) -> Writer:
        """Return a writer that nobody else uses.

        Raises:
            OutOfMemoryError: no room for another slot.
        """
        return self._idle.pop() if self._idle else Writer.create(self._node)

    def give(self, writer: Writer) -> None:
        """Take a writer back that holds no lock."""
        if len(self._idle) < IDLE_MAX:
            self._idle.append(writer)
        else:
            writer.close()

    def close(self) -> None:
        """Remove the slots of all idle writers."""
        while self._idle:
            self._idle.pop().close()


class Holding:
    """What one request holds, over as many tries as it takes.

    Args:
        writers: lends it a writer.
    """

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._held: tuple[Writer, Hold] | None = None

    def of(self, region: MappedRegion, stripes: range) -> tuple[Writer, Hold]:
        """Return the writer and its hold; the same ones until ``let_go``."""
        if self._held is None:
            writer = self._writers.take()
            self._held = writer, Hold(region, writer.locks, stripes)
        return self._held

    def let_go(self) -> None:
        """Release what is held and give the writer back."""
        if self._held is not None:
            writer, hold = self._held
            self._held = None
            hold.release()
            self._writers.give(writer)
