"""Changes on mapped memory: orders to the native library, and how much of each is committed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from smbox.errors import ConfigError, SmboxError
from smbox.memory import commit, orders
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_DONE, ORDER_NBYTES, ORDER_WORDS, Block, Output
from smbox.paths.local_queue import LocalQueue, LocalWork, pack
from smbox.paths.requests import ByteRange, Changes, Copying, Operation, Signalled
from smbox.wire.ops import cut

FROM_NBYTES: Final = 8 * STRIPE_NBYTES
"""Bytes of another region that are read, and then committed, at a time."""


class LocalChanges(LocalWork[Any]):
    """Changes in order, in as few library calls as possible; units are changes.

    A change that fails does not stop the next ones, but for a signal, which needs all of the
    change before it. The first error is raised once all have ended. Each order holds its own
    progress, whatever interrupts it; the first step writes the rest of the orders.

    Args:
        queue: of the thread that begins them.
        request: an ``Operation``, ``Signalled`` or ``Changes``.
        done: number of bytes of the first change that are committed already.
    """

    is_change = True

    def __init__(self, queue: LocalQueue, request: Any, done: int = 0) -> None:
        super().__init__(queue, request)
        self._is_signalled = isinstance(request, Signalled)
        changes = request.operations if isinstance(request, Changes) else [request]
        self._operations: list[Operation] = [*changes]
        if isinstance(request, Signalled):
            self._operations.append(request.signal)
        self.at, self.limit = 0, len(self._operations)
        self._block = Block(max(1, self.limit) * ORDER_NBYTES)
        self._done = self._block.words[ORDER_DONE::ORDER_WORDS]  # the first byte not committed
        for index, operation in enumerate(self._operations):
            self._done[index] = operation.first
        self._done[0] += done
        self._regions: list[tuple[MappedRegion, ...]] = []  # (): they cannot be mapped
        self._failures: dict[int, SmboxError] = {}  # by index of the change

    def step(self) -> None:
        """Commit what is left."""
        if self.at < self.limit and not self._regions:
            self._pack()
        while self._skip_ended() < self.limit:
            try:
                self._run()
            except SmboxError as error:
                self._failures[self._skip_ended()] = error
        self._regions = []  # a request that is done keeps no freed memory mapped
        if self._failures:
            raise self._failures[min(self._failures)]

    def _pack(self) -> None:
        """Write the orders; one whose region cannot be mapped fails when its turn comes."""
        regions: list[tuple[MappedRegion, ...]] = []
        self._failures = {}
        for index, operation in enumerate(self._operations):
            try:
                regions.append(self._pack_one(index, operation))
            except SmboxError as error:
                regions.append(())
                self._failures[index] = error
        self._regions = regions

    def _pack_one(self, index: int, operation: Operation) -> tuple[MappedRegion, ...]:
        map_region = self.queue.regions.region
        regions = (map_region(operation.info), *map(map_region, operation.states))
        extents = b""
        if operation.states:
            extents = orders.extents_of([region.block for region in regions])
        self._operations[index] = operation = unaliased(regions[0], operation)
        at = self._done[index]
        pack(self._block, index, regions[0], operation, at, extents)
        return regions

    def _run(self) -> None:
        """Run the orders up to the next one that has no region."""
        begin = end = self.at
        nbytes = 0
        while end < self.limit and self._regions[end]:
            operation = self._operations[end]
            nbytes += operation.source.nbytes or operation.limit - operation.first
            end += 1
        writer = self.queue.make_writer()
        commit.run_orders(writer, self._block, self._regions[begin:end], nbytes, begin)

    def _skip_ended(self) -> int:
        """Move ``at`` behind the orders that have ended, also those of an interrupted call."""
        while self.at < self.limit:
            if self.at in self._failures:
                self.at = self.limit if self._is_signalled else self.at + 1
            elif self._done[self.at] == self._operations[self.at].limit:
                self.at += 1
            else:
                break
        return self.at

    def progress(self) -> int:
        """Return a number that grows with the bytes done, here and in requests before this."""
        return super().progress() + sum(self._done)

    def ranges_done(self) -> list[ByteRange]:
        """Return the committed range of each change, without that of a signal."""
        ends = zip(self._operations, self._done, strict=False)
        ranges = [(each.first, end) for each, end in ends if end > each.first]
        return ranges[:1] if self._is_signalled else ranges

    def outcome(self) -> str:
        """Return the known outcome; a signal that was given proves "all"."""
        signal = self._operations[-1]
        is_signalled = self._is_signalled and self._done[1] == signal.limit
        return "all" if is_signalled else super().outcome()


class LocalFrom(LocalWork[Copying]):
    """A change of a range by another region's bytes; each stripe is read between two commits.

    It works on a few stripes at a time: each call of the library releases the GIL, and a busy
    thread of the process gives it back late.
    """

    is_change = True
    _open: LocalChanges | None = None
    """The change of the part that was begun last."""

    def step(self) -> None:
        """Read an operand and commit it, part by part."""
        self._settle()
        for first, limit in cut(self.at, self.limit, FROM_NBYTES):
            self._open = self._change(first, limit)
            self._open.step()
            self._settle()

    def progress(self) -> int:
        """Return a number that grows with the bytes done, here and in requests before this."""
        self._settle()
        return super().progress()

    def ranges_done(self) -> list[ByteRange]:
        """Return the range that is committed."""
        self._settle()
        return super().ranges_done()

    def _settle(self) -> None:
        """Note what an interrupted step has committed; the rest is read again."""
        if self._open is not None:
            for _, limit in self._open.ranges_done():
                self.at = limit

    def _change(self, first: int, limit: int) -> LocalChanges:
        request, queue = self.request, self.queue
        operand = np.empty(limit - first, np.uint8)
        other = queue.regions.region(request.other)
        offset = request.other_first - self.first
        queue.reader.read(other, first + offset, limit + offset, operand)
        return LocalChanges(queue, replace(request, first=first, limit=limit, source=operand))


def unaliased(region: MappedRegion, operation: Operation) -> Operation:
    """Copy an operand that lies in the changed region, where the commit would overwrite it.

    Raises:
        ConfigError: an exchange would move it, or the result would be written there: it would
            change the region outside a commit.
    """
    sink = operation.sink
    if sink is not None and sink.is_given and np.may_share_memory(sink.out, region.data):
        raise ConfigError(
            "out or delta lies in the region that is changed: give other memory",
            name=region.spec.name,
        )
    if not np.may_share_memory(operation.source, region.data):
        return operation
    if sink is not None and sink.output == Output.MOVED:
        raise ConfigError(
            "x lies in the region it is exchanged with: exchange a copy, or pass delta=",
            name=region.spec.name,
        )
    return replace(operation, source=operation.source.copy())
