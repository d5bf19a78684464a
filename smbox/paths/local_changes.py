"""Changes on mapped memory: orders to the native library, and where each one stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SmboxError
from smbox.memory import commit, orders
from smbox.memory.kernels import KernelCode, native_scale
from smbox.memory.mapped import MappedRegion, Piece, pieces
from smbox.memory.orders import Block
from smbox.paths.base import BatchItem, ByteRange, Operation, Sink
from smbox.paths.local_queue import LocalQueue, LocalWork
from smbox.paths.special import OptimizerStep


class LocalChange(LocalWork):
    """A change of a range: one order. It keeps its own place, whatever interrupts it.

    Args:
        queue: of the thread that begins it.
        regions: mapped; the region, and for an optimizer those of its state.
        operation: what is done.
        sink: says what comes back, and where to.
        parameters: of an optimizer, ``f64[4]``.
    """

    __slots__ = ("_block", "_done", "_operation", "_parameters", "_regions", "_sink")

    def __init__(
        self,
        queue: LocalQueue,
        regions: tuple[MappedRegion, ...],
        operation: Operation,
        sink: Sink | None = None,
        parameters: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(queue)
        self._regions = regions
        self._operation = operation
        self._sink = sink
        self._parameters = parameters
        self._done = operation.first
        self._block: Block | None = queue.take_block()
        pack(self._block, 0, regions, operation, sink, parameters)

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left."""
        assert self._block is not None, "it has not ended"
        commit.run_order(queue.writer, self._block, self._regions, self._operation.limit)

    def ended(self, queue: LocalQueue) -> None:
        """Give the order's block back, for the thread's next one."""
        self._done = self._done_byte()
        block, self._block = self._block, None
        if block is not None:
            queue.give_block(block)

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        first, done = self._operation.first, self._done_byte()
        return [(first, done)] if done > first else []

    def _done_byte(self) -> int:
        return self._done if self._block is None else orders.order_outcome(self._block)[0]


def pack(
    block: Block,
    place: int,
    regions: tuple[MappedRegion, ...],
    operation: Operation,
    sink: Sink | None = None,
    parameters: NDArray[np.float64] | None = None,
) -> None:
    """Write an operation as the order of index ``place``; its arrays must stay."""
    region = regions[0]
    _, kernel, scale, first, limit, source, operand = operation
    is_plain = scale == 1
    scale = region.unit_scale if is_plain else native_scale(kernel, region.spec.dtype, scale)
    orders.pack_order(
        block,
        place,
        kernel,
        operand or region.dtype_code,
        [each.block.address for each in regions],
        first,
        limit,
        source,
        scale,
        first,
        0 if sink is None else sink.back,
        0 if sink is None else sink.address(operation),
        0 if parameters is None else orders.address_of(parameters),
    )


class LocalFrom(LocalWork):
    """A change of a range by another region's bytes, each stripe as between two commits.

    Args:
        queue: of the thread that begins it.
        region: mapped; changed.
        operation: what is done; its source is empty.
        source: mapped; read.
        ahead: where a byte's operand lies in the source: its own place, plus this.
    """

    __slots__ = ("_ahead", "_at", "_open", "_operation", "_region", "_source")

    def __init__(
        self,
        queue: LocalQueue,
        region: MappedRegion,
        operation: Operation,
        source: MappedRegion,
        ahead: int,
    ) -> None:
        super().__init__(queue)
        self._region = region
        self._operation = operation
        self._source = source
        self._ahead = ahead
        self._at = operation.first
        self._open: LocalChange | None = None

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
        queue.reader.read(self._source, first + self._ahead, limit + self._ahead, operand)
        operation = self._operation._replace(first=first, limit=limit, source=operand)
        return LocalChange(queue, (self._region,), operation)


class LocalBatch(LocalWork):
    """Many changes in order, in one call; the first failure is raised when all have ended.

    Args:
        queue: of the thread that begins it.
        items: within one stripe each.
        regions: mapped, one for each item; or why an item's region cannot be.
    """

    __slots__ = ("_block", "_failed", "_items", "_next", "_regions")

    def __init__(
        self,
        queue: LocalQueue,
        items: Sequence[BatchItem],
        regions: Sequence[MappedRegion | SmboxError],
    ) -> None:
        super().__init__(queue)
        self._items = items
        self._regions = regions
        self._failed: set[int] = set()
        self._next = 0
        self._block = Block(max(1, len(items)) * orders.ORDER_NBYTES)
        for place, (item, region) in enumerate(zip(items, regions, strict=True)):
            if isinstance(region, MappedRegion):
                pack(self._block, place, (region,), item.operation, item.sink)

    def step(self, queue: LocalQueue) -> None:
        """Commit what is left."""
        while self._advance_over_done() < len(self._items):
            try:
                self._run(queue)
            except SmboxError as error:
                self._failed.add(self._next)
                self.error = self.error or error
        if self.error is not None:
            raise self.error

    def _run(self, queue: LocalQueue) -> None:
        first = self._next
        region = self._regions[first]
        if not isinstance(region, MappedRegion):
            raise region
        writer = queue.writer
        limit = next(
            (
                place
                for place in range(first, len(self._items))
                if not isinstance(self._regions[place], MappedRegion)
            ),
            len(self._items),
        )
        nbytes = sum(self._items[at].operation.source.size for at in range(first, limit))
        self._next = commit.run_orders(writer, self._block, first, limit, nbytes)
        if self._next < limit:
            _, result, met, stripe = orders.order_outcome(self._block, self._next)
            stopped = self._regions[self._next]
            assert isinstance(stopped, MappedRegion), "only mapped ones are run"
            commit.clear_obstacle(writer, (stopped,), result, met, stripe)

    def _advance_over_done(self) -> int:
        """Pass the items that are done, also those of an interrupted call."""
        while self._next < len(self._items):
            done = orders.order_outcome(self._block, self._next)[0]
            is_done = done == self._items[self._next].operation.limit
            is_mapped = isinstance(self._regions[self._next], MappedRegion)
            if self._next not in self._failed and not (is_done and is_mapped):
                break
            self._next += 1
        return self._next

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges done, change by change."""
        operations = [self._items[at].operation for at in range(self._advance_over_done())]
        return [
            (operation.first, operation.limit)
            for at, operation in enumerate(operations)
            if at not in self._failed
        ]


def step_of(
    queue: LocalQueue, regions: tuple[MappedRegion, ...], step: OptimizerStep
) -> LocalChange:
    """Make the request of an optimizer's step: one order over region and state.

    Raises:
        ConfigError: regions of state and region do not fit.
    """
    gradient = step.gradient.reshape(-1)
    parameters = np.zeros(4)
    parameters[: len(step.parameters)] = step.parameters
    operation = Operation(
        "step",
        cast("KernelCode", step.optimizer),  # numbers of one table in the native library
        1.0,
        0,
        regions[0].nbytes,
        gradient.view(np.uint8),
        step.operand,
    )
    return LocalChange(queue, regions, operation, None, parameters)
