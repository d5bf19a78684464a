"""Changes on mapped memory: orders to the native library, and where each one stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SmboxError
from smbox.memory import commit, orders
from smbox.memory.kernels import PARAMETERS_MAX
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_NBYTES, Block
from smbox.paths.local_orders import pack, unaliased
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.work import ByteRange, Operation, RegionInfo
from smbox.wire.ops import cut


@dataclass(eq=False)
class LocalChange(LocalWork):
    """What is left of a change: one order. It keeps its own place, whatever interrupts it.

    Args:
        queue: of the thread that begins it.
        operation: what is done.
        done: how many bytes of it are.
        block: the order: packed by the first step, and true from then on.
        regions: that the order changes.
        parameters: of an optimizer, kept as long as the order.
    """

    queue: LocalQueue
    operation: Operation
    done: int = 0
    block: Block | None = field(default=None, init=False)
    regions: tuple[MappedRegion, ...] = field(default=(), init=False)
    parameters: NDArray[np.float64] | None = field(default=None, init=False)

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left."""
        block = self.block or self._pack(queue)
        nbytes = self.operation.limit - self.operation.first
        commit.run_orders(queue.make_writer(), block, [self.regions], nbytes)

    def _pack(self, queue: LocalQueue) -> Block:
        operation = self.operation
        regions = tuple(map(queue.regions.region, (operation.info, *operation.states)))
        extents = orders.extents_of([region.block for region in regions])
        if operation.states:
            self.parameters = np.zeros(PARAMETERS_MAX)
            self.parameters[: len(operation.parameters)] = operation.parameters
        block = Block(ORDER_NBYTES)
        self.operation = operation = unaliased(regions[0], operation)
        at = operation.first + self.done
        pack(block, 0, regions[0], operation, at, extents, self.parameters)
        self.regions = regions
        self.block = block
        return block

    def ended(self) -> None:
        """Let go of the order and its regions."""
        self.done = self._done_nbytes()
        self.block, self.regions = None, ()

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        first, done = self.operation.first, self._done_nbytes()
        return [(first, first + done)] if done else []

    def _done_nbytes(self) -> int:
        if self.block is None:
            return self.done
        return orders.order_outcome(self.block)[0] - self.operation.first


@dataclass(eq=False)
class LocalSignalled(LocalChange):
    """A change of a range and, once all of it is committed, that of a counter.

    Args:
        queue: of the thread that begins it.
        operation: what is done.
        signal: the change of the counter.
    """

    signal: LocalChange = field(kw_only=True)

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left; an order that is done runs again without effect."""
        super().step(queue)
        self.signal.step(queue)

    def ended(self) -> None:
        """Let go of both orders."""
        self.signal.ended()
        super().ended()

    def outcome(self) -> str:
        """Tell what is known of the effect: "all" with the signal."""
        return "all" if self.signal.ranges_done() else super().outcome()


@dataclass(eq=False)
class LocalFrom(LocalWork):
    """A change of a range by another region's bytes, each stripe as between two commits.

    Args:
        queue: of the thread that begins it.
        operation: what is done; its source is empty.
        source: read.
        source_first: where in its data the operand begins.
        done: how many bytes are committed, but for those of ``open``.
        open: the change of the stripe that was begun last.
    """

    queue: LocalQueue
    operation: Operation
    source: RegionInfo
    source_first: int
    done: int = field(default=0, init=False)
    open: LocalChange | None = field(default=None, init=False)

    def step(self, queue: LocalQueue) -> None:
        """Read an operand and commit it, stripe by stripe."""
        self._settle()
        begin = self.operation.first + self.done
        for first, limit in cut(begin, self.operation.limit, STRIPE_NBYTES):
            self.open = self._change(queue, first, limit)
            self.open.step(queue)
            self._settle()

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        self._settle()
        first = self.operation.first
        return [(first, first + self.done)] if self.done else []

    def _settle(self) -> None:
        """Note what an interrupted step has committed; its operand is read anew if nothing."""
        for _, limit in self.open.ranges_done() if self.open is not None else ():
            self.done = limit - self.operation.first

    def _change(self, queue: LocalQueue, first: int, limit: int) -> LocalChange:
        operand = np.empty(limit - first, np.uint8)
        source = queue.regions.region(self.source)
        ahead = self.source_first - self.operation.first
        queue.reader.read(source, first + ahead, limit + ahead, operand)
        return LocalChange(
            queue, self.operation._replace(first=first, limit=limit, source=operand)
        )


class LocalBatch(LocalWork):
    """Many changes in order, in one call; the first failure is raised when all have ended.

    Args:
        queue: of the thread that begins it.
        operations: within one stripe each.
    """

    def __init__(self, queue: LocalQueue, operations: Sequence[Operation]) -> None:
        self.queue = queue
        self._operations = list(operations)
        self._failed: set[int] = set()
        self._next = 0
        self._block = Block(max(1, len(operations)) * ORDER_NBYTES)
        self._regions = [self._pack(place) for place in range(len(operations))]

    def _pack(self, place: int) -> MappedRegion | SmboxError:
        """Write an order; return its region, or why there is none: that fails in its turn."""
        operation = self._operations[place]
        try:
            region = self.queue.regions.region(operation.info)
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
                self._failed.add(self._advance_over_done())
                self.error = self.error or error
        if self.error is not None:
            raise self.error

    def _run(self, queue: LocalQueue) -> None:
        """Run the orders up to the next one that has no region."""
        regions: list[tuple[MappedRegion]] = []
        nbytes = 0
        for place in range(self._next, len(self._regions)):
            region = self._regions[place]
            if not isinstance(region, MappedRegion):
                if regions:
                    break
                raise region
            regions.append((region,))
            nbytes += self._operations[place].source.nbytes
        commit.run_orders(queue.make_writer(), self._block, regions, nbytes, self._next)

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
