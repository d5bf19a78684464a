"""One request of a thread's queue, on mapped memory; and an operation as an order of C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, SmboxError
from smbox.memory.kernels import KernelCode, native_scale
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import ORDER_NBYTES, Back, Block, address_of, write_order
from smbox.memory.recovery import StripeBusy
from smbox.paths.work import Operation
from smbox.work import Pause, Work

if TYPE_CHECKING:
    from smbox.paths.local_queue import LocalQueue


class LocalWork(Work):
    """One request of a queue; subclasses say what a step is.

    Attributes:
        queue: of the thread that begins it.
        is_begun: it was tried, or waits for those before it.
        is_done: it ended, well or not.
        error: what it failed with.
        busy: the stripe that stopped its last step.
    """

    is_begun = False
    is_done = False
    error: SmboxError | None = None
    busy: StripeBusy | None = None
    queue: LocalQueue

    def step(self, queue: LocalQueue) -> None:
        """Go on as far as possible; StripeBusy where that is not the end.

        Called again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return how many bytes are done."""
        return sum(limit - first for first, limit in self.ranges_done())

    def begin(self) -> None:
        """Try it at once, behind those that were begun before."""
        if not self.is_begun and not self.queue.run(self):
            self.queue.rest()

    def outcome(self) -> str:
        """Tell what is known of the effect; a local request never ends in doubt."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def facts(self) -> dict[str, object]:
        """Name the stripe in the way and the process that holds it (0: not known)."""
        busy = self.queue.busy()
        if busy is None:
            return {}
        return {
            "region": busy.region.spec.name,
            "stripe": busy.stripe,
            "holder_pid": busy.holder_pid(),
        }

    def advance(self, deadline_s: float) -> bool:
        """Drive the queue until this request is done; begins it, if need be."""
        if not self.is_done:
            pause = Pause()
            try:
                while not self.queue.run(self):
                    if not pause.sleep(deadline_s):
                        return False
            finally:
                self.queue.rest()
        if self.error is not None:
            self.queue.seen(self)
            raise self.error
        return True

    def ended(self) -> None:
        """Give back what is not needed any more; called once, under the queue's lock."""

    def rested(self) -> None:
        """Release what only somebody who waits may keep; called under the queue's lock."""

    def cancel(self) -> None:
        """Leave the queue; what is committed stays."""
        self.queue.drop(self)


def pack(
    block: Block,
    place: int,
    region: MappedRegion,
    operation: Operation,
    at: int,
    extents: bytes = b"",
    parameters: NDArray[np.float64] | None = None,
) -> int:
    """Write an operation, to be kept as long as it may run, as the order of index ``place``.

    Args:
        block: of at least ``place + 1`` orders.
        place: which one.
        region: that is changed.
        operation: what is done.
        at: byte from which on it is still to be done.
        extents: the region and its siblings; empty: it has none.
        parameters: an optimizer's, ``f64[4]``.

    Returns:
        How many bytes its range has.
    """
    _, _, kernel, scale, first, limit, source, operand, sink, _, _ = operation
    if scale == 1:
        scale = region.unit_scale
    elif type(scale) is not float or type(region.unit_scale) is int:  # C rounds floats
        scale = native_scale(KernelCode(kernel), region.spec.dtype, scale)
    address = address_of(source)
    write_order[type(scale)](
        block.bytes,
        place * ORDER_NBYTES,
        kernel,
        operand or region.dtype_code,
        0 if sink is None else sink.back,
        extents or region.extents,
        first,
        limit,
        address,
        source.nbytes,
        scale,
        0 if parameters is None else address_of(parameters),
        0 if sink is None else sink.address(operation, address),
        0,
        0,
        at,
    )
    return limit - first


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
    return operation._replace(source=operation.source.copy())
