"""Items of a batch that are alike, committed in one compiled call: each by itself, in order.

What is in the way of an item, or wrong with it, is found by who goes on with it alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memnode.channel import Channel
from memnode.registry import Registry
from smbox.memory.item_run import commit_items
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.wire.batch import ITEM_NBYTES
from smbox.wire.header import Buffer
from smbox.wire.ops import Op

ALIKE: Final = {
    (int(Op.PUT), int(KernelCode.REPLACE)): KernelCode.REPLACE,
    (int(Op.ACCUMULATE), int(KernelCode.SUM)): KernelCode.SUM,
}
"""What may be committed so, by op and kernel: it answers nothing, and its operand is as long
as its range."""

_ITEM_WORDS: Final = ITEM_NBYTES // 8
_LOW: Final = 0xFF
_SOURCE_SHIFT: Final = np.uint64(32)


def commit_together(
    writer: Writer,
    registry: Registry,
    channel: Channel,
    body: Buffer,
    count: int,
    number: int,
    *,
    needs_all: bool = False,
) -> int:
    """Commit items of a batch, from the first that is not applied on, as far as they are alike.

    Args:
        writer: the lane's.
        registry: finds the items' region.
        channel: whose numbers the batch takes; the next one is that item's.
        body: the second frame of the batch.
        count: of its items, all of which are in it.
        number: of the first item.
        needs_all: commit nothing unless the items are alike to the end of the frame.

    Returns:
        How many items are applied, those that were before among them.

    Raises:
        RemoteError: the item's region is not there; nothing changed.
    """
    begin = channel.applied + 1 - number
    if not 0 <= begin < count:
        return max(0, min(begin, count))
    # Copied: in the frame they lie at any byte.
    orders = np.frombuffer(body, np.uint64, count * _ITEM_WORDS).reshape(count, -1).copy()
    kind = int(orders[begin, 0])
    kernel = ALIKE.get((kind & _LOW, kind >> 8 & _LOW))
    if kernel is None:
        return begin
    region = registry.locate(int(orders[begin, 1]))
    source_at = count * ITEM_NBYTES + int((orders[:begin, 0] >> _SOURCE_SHIFT).sum())
    source = np.frombuffer(body, np.uint8)
    receipt = channel.receipt(number + begin, answers=False)
    orders = orders[begin:]
    return begin + commit_items(
        writer, region, kernel, orders, source_at, source, receipt, needs_all=needs_all
    )
