"""Commits: orders handed to the native library, and what stands in their way dealt with.

The procedure itself is smbox/native/commit.c. C stops at the first obstacle: a stripe that
somebody holds becomes StripeBusy; a commit that a dead writer left open is recovered, and the
order goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import LayoutMismatchError, SegmentError
from smbox.memory import orders, recovery
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import Block, Result
from smbox.memory.recovery import StripeBusy
from smbox.native import library

SHORT_NBYTES: Final = 64 * 1024
"""Up to so many bytes a call keeps the GIL: giving it up costs more than the commit."""

_DONE: Final = int(Result.DONE)
_FLOAT32_NBYTES: Final = 4


def run_orders(
    writer: Writer,
    block: Block,
    regions: Sequence[tuple[MappedRegion, ...]],
    nbytes: int,
    begin: int = 0,
) -> None:
    """Run orders of a block to their end; their outcomes tell how far they are, always.

    Args:
        writer: the calling thread's.
        block: holds the orders.
        regions: those of each order.
        nbytes: of their operands, by which the call keeps the GIL or not.
        begin: index of the first order.

    Raises:
        StripeBusy, RegionFreedError: the stripe that an order has come to is held, or is no
            more; call again to go on.
        LayoutMismatchError: kernel, range and source do not fit each other; nothing changed.
        SegmentError: a dead writer's journal is damaged; the stripe stays open.
    """
    run = writer.short if nbytes <= SHORT_NBYTES else writer.long
    at, limit = begin, begin + len(regions)
    while at < limit:
        ref = block.ref_at(at * orders.ORDER_NBYTES) if at else block.ref
        at += run(writer.ref, ref, limit - at)
        if at < limit:
            _, result, met, stripe = orders.order_outcome(block, at)
            if result != _DONE:  # else the library has paused, for signals to come through
                _clear_obstacle(writer, regions[at - begin], result, met, stripe)


def _clear_obstacle(
    writer: Writer, regions: tuple[MappedRegion, ...], result: int, met: int, stripe: int
) -> None:
    """Recover the stripe that stopped an order, or raise what it means.

    Raises:
        StripeBusy, RegionFreedError, LayoutMismatchError, SegmentError: as ``run_orders``.
    """
    region = next((each for each in regions if each.block.address == met), regions[0])
    if result == Result.OPEN:
        recovery.recover_stripe(region, stripe, writer.locks)
        return
    raise_obstacle(region, result, stripe)


def raise_obstacle(region: MappedRegion, result: int, stripe: int) -> None:
    """Raise what stopped an order or a read."""
    if result == Result.BUSY:
        raise StripeBusy(region, stripe)
    region.check_usable()
    if result == Result.BAD_ORDER:
        name = region.spec.name
        raise LayoutMismatchError("kernel, range and operand do not fit", region=name)
    raise SegmentError("the node's lock file refuses a lock", region=region.spec.name)


def moved(
    old: NDArray[np.uint8], source: NDArray[np.uint8], rate: float, operand: int
) -> NDArray[np.uint8]:
    """Return the operand x of a narrow exchange, moved: ``x - rate * (x - c)``.

    Bit for bit what the commit's kernel computes, rounded once to the operand's type.

    Args:
        old: the bytes of c, float32.
        source: the bytes of x, as many elements of the operand's type.
        rate: the moving rate.
        operand: dtype code of float16 or bfloat16.
    """
    out = np.empty_like(source)
    addresses = [orders.address_of(each) for each in (old, source, out)]
    bits = int(np.float64(rate).view(np.uint64))
    library.load().long.smbox_moved(*addresses, old.size // _FLOAT32_NBYTES, bits, operand)
    return out
