"""Changes on mapped memory: orders to the native library, and where each one stands."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.errors import ConfigError, SmboxError
from smbox.memory import commit, orders
from smbox.memory.kernels import PARAMETERS_MAX
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_DONE, ORDER_NBYTES, ORDER_WORDS, Back, Block
from smbox.paths.local_queue import LocalQueue, LocalWork, W, pack
from smbox.paths.work import ByteRange, Changes, Copying, Operation, Signalled
from smbox.wire.ops import cut

FROM_NBYTES: Final = 8 * STRIPE_NBYTES
"""So much of another region is read, and then committed, at a time."""


class LocalOrders(LocalWork[W]):
    """Changes in order, in as few calls as can be; units are changes.

    The first failure is raised when all have ended. An order keeps its own place, whatever
    interrupts it: it is packed by the first step, and tells how far it is from then on.

    Attributes:
        is_chain: none follows one that failed.

    Args:
        queue: of the thread that begins them.
        request: what is done.
        done: how many bytes of the first one are done.
    """

    is_chain = False

    def __init__(self, queue: LocalQueue, request: W, done: int = 0) -> None:
        super().__init__(queue, request)
        self._operations = self.operations()
        self.at, self.limit = 0, len(self._operations)
        self._ends = [each.first for each in self._operations]  # as long as there is no block
        self._ends[:1] = [end + done for end in self._ends[:1]]
        self._block: Block | None = None
        self._regions: list[tuple[MappedRegion, ...]] = []  # none: it cannot be mapped
        self._parameters: list[NDArray[np.float64]] = []
        self._failures: dict[int, SmboxError] = {}  # by place

    def operations(self) -> list[Operation]:
        """Return the changes that it consists of."""
        raise NotImplementedError

    def step(self) -> None:
        """Commit what is left."""
        if self._block is None:
            self._block = self._pack()
        while self._pass_ended(self._block) < self.limit:
            try:
                self._run(self._block)
            except SmboxError as error:
                self._failures[self._pass_ended(self._block)] = error
        if self._failures:
            raise self._failures[min(self._failures)]

    def _pack(self) -> Block:
        """Write the orders; one whose region cannot be mapped fails in its turn."""
        block = Block(max(1, self.limit) * ORDER_NBYTES)
        self._regions, self._parameters, self._failures = [], [], {}
        for place, operation in enumerate(self._operations):
            try:
                self._regions.append(self._pack_one(block, place, operation))
            except SmboxError as error:
                self._regions.append(())
                self._failures[place] = error
        return block

    def _pack_one(
        self, block: Block, place: int, operation: Operation
    ) -> tuple[MappedRegion, ...]:
        map_region = self.queue.regions.region
        regions = (map_region(operation.info), *map(map_region, operation.states))
        extents, parameters = b"", None
        if operation.states:
            extents = orders.extents_of([region.block for region in regions])
            parameters = np.zeros(PARAMETERS_MAX)
            parameters[: len(operation.parameters)] = operation.parameters
            self._parameters.append(parameters)
        self._operations[place] = operation = unaliased(regions[0], operation)
        pack(block, place, regions[0], operation, self._ends[place], extents, parameters)
        return regions

    def _run(self, block: Block) -> None:
        """Run the orders up to the next one that has no region."""
        begin = end = self.at
        nbytes = 0
        while end < self.limit and self._regions[end]:
            operation = self._operations[end]
            nbytes += operation.source.nbytes or operation.limit - operation.first
            end += 1
        writer = self.queue.make_writer()
        commit.run_orders(writer, block, self._regions[begin:end], nbytes, begin)

    def _pass_ended(self, block: Block) -> int:
        """Pass the orders that have ended, also those of an interrupted call."""
        while self.at < self.limit:
            done = block.words[self.at * ORDER_WORDS + ORDER_DONE]
            if self.at in self._failures:
                self.at = self.limit if self.is_chain else self.at + 1
            elif done == self._operations[self.at].limit:
                self.at += 1
            else:
                break
        return self.at

    def free_resources(self) -> None:
        """Let go of the orders and their regions."""
        self._ends = self._done_to()
        self._block, self._regions, self._parameters = None, [], []

    def _done_to(self) -> list[int]:
        """Return the byte up to which each change is committed."""
        if self._block is None:
            return self._ends
        return self._block.words[ORDER_DONE::ORDER_WORDS].tolist()

    def progress(self) -> int:
        """Return a number that grows with the bytes done, and with what is before this."""
        return super().progress() + sum(self._done_to())

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges that are committed so far, change by change."""
        ends = zip(self._operations, self._done_to(), strict=False)
        return [(each.first, end) for each, end in ends if end > each.first]


class LocalChange(LocalOrders[Operation]):
    """What is left of a change."""

    def operations(self) -> list[Operation]:
        """Return the change."""
        return [self.request]


class LocalBatch(LocalOrders[Changes]):
    """Many changes; each happens, whatever becomes of the others."""

    def operations(self) -> list[Operation]:
        """Return the changes."""
        return [*self.request.operations]


class LocalSignalled(LocalOrders[Signalled]):
    """A change of a range and, once all of it is committed, that of a counter."""

    is_chain = True

    def operations(self) -> list[Operation]:
        """Return both changes."""
        return [self.request, self.request.signal]

    def ranges_done(self) -> list[ByteRange]:
        """List the range of the change that is committed so far."""
        return super().ranges_done()[:1]

    def outcome(self) -> str:
        """Tell what is known of the effect: "all" with the signal."""
        return "all" if self._done_to()[1] else super().outcome()


class LocalFrom(LocalWork[Copying]):
    """A change of a range by another region's bytes, each stripe as between two commits.

    Some stripes at a time: each call of the library gives up the GIL, which a thread that
    computes beside this one gives back late.
    """

    _open: LocalChange | None = None
    """The change of the piece that was begun last."""

    def step(self) -> None:
        """Read an operand and commit it, piece by piece."""
        self._settle()
        for first, limit in cut(self.at, self.limit, FROM_NBYTES):
            self._open = self._change(first, limit)
            self._open.step()
            self._settle()

    def progress(self) -> int:
        """Return a number that grows with the bytes done, and with what is before this."""
        self._settle()
        return super().progress()

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        self._settle()
        return super().ranges_done()

    def _settle(self) -> None:
        """Note what an interrupted step has committed; its operand is read anew if nothing."""
        for _, limit in self._open.ranges_done() if self._open is not None else ():
            self.at = limit

    def _change(self, first: int, limit: int) -> LocalChange:
        request, queue = self.request, self.queue
        operand = np.empty(limit - first, np.uint8)
        other = queue.regions.region(request.other)
        ahead = request.other_first - self.first
        queue.reader.read(other, first + ahead, limit + ahead, operand)
        part = replace(request, first=first, limit=limit, source=operand)
        return LocalChange(queue, part)


def unaliased(region: MappedRegion, operation: Operation) -> Operation:
    """Copy an operand that lies in the region itself: parts of it change before their turn.

    Raises:
        ConfigError: an exchange would move it, and write to the region outside a commit.
    """
    if not region.may_hold(operation.source):
        return operation
    if operation.sink is not None and operation.sink.back == Back.MOVED:
        raise ConfigError(
            "x lies in the region it is exchanged with: exchange a copy, or pass delta=",
            name=region.spec.name,
        )
    return replace(operation, source=operation.source.copy())
