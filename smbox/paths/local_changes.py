"""Changes on mapped memory: orders to the native library, and where each one stands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SmboxError
from smbox.memory import commit, orders
from smbox.memory.mapped import MappedRegion, Piece, pieces
from smbox.memory.orders import ORDER_NBYTES, Block
from smbox.paths.local_queue import LocalQueue
from smbox.paths.local_work import LocalWork
from smbox.paths.packing import pack, unaliased
from smbox.paths.work import ByteRange, Operation, RegionInfo


class LocalChange(LocalWork):
    """What is left of a change: one order. It keeps its own place, whatever interrupts it.

    Args:
        queue: of the thread that begins it.
        operation: what is done.
        done: how many bytes of it are.
    """

    _block: Block | None = None  # the order: packed by the first step, and true from then on
    _regions: tuple[MappedRegion, ...] = ()
    _parameters: NDArray[np.float64] | None = None

    def __init__(self, queue: LocalQueue, operation: Operation, done: int = 0) -> None:
        self._queue = queue
        self._operation = operation
        self._done = operation.first + done

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left."""
        block = self._block or self._pack(queue)
        nbytes = self._operation.limit - self._operation.first
        commit.run_order(queue.make_writer(), block, self._regions, nbytes)

    def _pack(self, queue: LocalQueue) -> Block:
        operation = self._operation
        regions = tuple(map(queue.regions.region, (operation.info, *operation.states)))
        extents = orders.extents_of([region.block for region in regions])
        if operation.states:
            self._parameters = np.zeros(4)
            self._parameters[: len(operation.parameters)] = operation.parameters
        block = Block(ORDER_NBYTES)
        self._operation = operation = unaliased(regions[0], operation)
        pack(block, 0, regions[0], operation, self._done, extents, self._parameters)
        self._regions = regions
        self._block = block
        return block

    def ended(self) -> None:
        """Let go of the order and its regions."""
        self._done = self._operation.limit if self.error is None else self._done_byte()
        self._block, self._regions = None, ()

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        first, done = self._operation.first, self._done_byte()
        return [(first, done)] if done > first else []

    def _done_byte(self) -> int:
        return self._done if self._block is None else orders.order_outcome(self._block)[0]


class LocalSignalled(LocalChange):
    """A change of a range and, once all of it is committed, that of a counter.

    Args:
        queue: of the thread that begins it.
        operation: what is done.
        signal: the change of the counter.
    """

    def __init__(self, queue: LocalQueue, operation: Operation, signal: Operation) -> None:
        super().__init__(queue, operation)
        self._signal = LocalChange(queue, signal)

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left; an order that is done runs again without effect."""
        super().step(queue)
        self._signal.step(queue)

    def ended(self) -> None:
        """Let go of both orders."""
        self._signal.error = self.error
        self._signal.ended()
        super().ended()

    def outcome(self) -> str:
        """Tell what is known of the effect: "all" with the signal."""
        return "all" if self._signal.ranges_done() else super().outcome()


class LocalFrom(LocalWork):
    """A change of a range by another region's bytes, each stripe as between two commits.

    Args:
        queue: of the thread that begins it.
        operation: what is done; its source is empty.
        source: read.
        source_first: where in its data the operand begins.
    """

    _open: LocalChange | None = None

    def __init__(
        self, queue: LocalQueue, operation: Operation, source: RegionInfo, source_first: int
    ) -> None:
        self._queue = queue
        self._operation = operation
        self._source = source
        self._ahead = source_first - operation.first
        self._at = operation.first

    def step(self, queue: LocalQueue) -> None:
        """Read an operand and commit it, stripe by stripe."""
        self._settle()
        for piece in pieces(self._at, self._operation.limit):
            self._open = self._change(queue, piece)
            self._open.step(queue)
            self._settle()

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        self._settle()
        first = self._operation.first
        return [(first, self._at)] if self._at > first else []

    def _settle(self) -> None:
        """Note what an interrupted step has committed; its operand is read anew if nothing."""
        for _, limit in self._open.ranges_done() if self._open is not None else ():
            self._at = limit

    def _change(self, queue: LocalQueue, piece: Piece) -> LocalChange:
        first, limit = piece.first, piece.limit
        operand = np.empty(limit - first, np.uint8)
        source = queue.regions.region(self._source)
        queue.reader.read(source, first + self._ahead, limit + self._ahead, operand)
        return LocalChange(
            queue, self._operation._replace(first=first, limit=limit, source=operand)
        )


class LocalBatch(LocalWork):
    """Many changes in order, in one call; the first failure is raised when all have ended.

    Args:
        queue: of the thread that begins it.
        operations: within one stripe each.
    """

    def __init__(self, queue: LocalQueue, operations: Sequence[Operation]) -> None:
        self._queue = queue
        self._operations = list(operations)
        self._failed: set[int] = set()
        self._next = 0
        self._block = Block(max(1, len(operations)) * ORDER_NBYTES)
        self._regions = [self._pack(place) for place in range(len(operations))]

    def _pack(self, place: int) -> MappedRegion | SmboxError:
        """Write an order; return its region, or why there is none: that fails in its turn."""
        operation = self._operations[place]
        try:
            region = self._queue.regions.region(operation.info)
        except SmboxError as error:
            return error
        self._operations[place] = operation = unaliased(region, operation)
        pack(self._block, place, region, operation, operation.first)
        return region

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left."""
        while self._advance_over_done() < len(self._operations):
            try:
                self._run(queue)
            except SmboxError as error:
                self._failed.add(self._next)
                self.error = self.error or error
        if self.error is not None:
            raise self.error

    def _run(self, queue: LocalQueue) -> None:
        """Run the orders up to the next one that has no region."""
        first = limit = self._next
        region = self._regions[first]
        if not isinstance(region, MappedRegion):
            raise region
        nbytes = 0
        while limit < len(self._regions) and isinstance(self._regions[limit], MappedRegion):
            nbytes += self._operations[limit].source.nbytes
            limit += 1
        writer = queue.make_writer()
        self._next = commit.run_orders(writer, self._block, first, limit, nbytes)
        if self._next < limit:
            _, result, met, stripe = orders.order_outcome(self._block, self._next)
            stopped = self._regions[self._next]
            assert isinstance(stopped, MappedRegion), "only mapped ones are run"
            commit.clear_obstacle(writer, (stopped,), result, met, stripe)

    def _advance_over_done(self) -> int:
        """Pass the orders that are done, also those of an interrupted call."""
        while self._next < len(self._operations):
            done = orders.order_outcome(self._block, self._next)[0]
            is_done = done == self._operations[self._next].limit
            is_mapped = isinstance(self._regions[self._next], MappedRegion)
            if self._next not in self._failed and not (is_done and is_mapped):
                break
            self._next += 1
        return self._next

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges done, change by change."""
        return [
            (self._operations[at].first, self._operations[at].limit)
            for at in range(self._advance_over_done())
            if at not in self._failed
        ]
