"""Items of a batch that are alike, committed in one compiled call: each by itself, in order.

What is in the way of an item, or wrong with it, is found by who goes on with it alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memnode.channel import Channel
from memnode.checks import KERNEL_OF, scale_from
from memnode.registry import Registry
from smbox.errors import SmboxError
from smbox.memory.item_run import Place, commit_items
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.wire.batch import ITEM_NBYTES, Item
from smbox.wire.codec import Request
from smbox.wire.ops import Op

_ALIKE: Final = frozenset(
    {(Op.PUT, int(KernelCode.REPLACE)), (Op.ACCUMULATE, int(KernelCode.SUM))}
)
"""What may be committed so: it answers nothing, and its operand is as long as its range."""


def commit_together(
    writer: Writer, registry: Registry, channel: Channel, request: Request
) -> None:
    """Commit items of a batch, from the first that is not applied on, as far as they are alike.

    Args:
        writer: the lane's.
        registry: finds the item's region.
        channel: whose numbers the batch takes; the next one is that item's.
        request: any change; of one without items, or with another count of numbers, nothing.

    Raises:
        RemoteError: the item's region is not there; nothing changed.
    """
    next_number = channel.applied + 1
    begin = next_number - request.number
    items = request.items
    if not 0 <= begin < len(items) == request.numbers:
        return
    if (items[begin].op, items[begin].kernel) not in _ALIKE:
        return
    region = registry.locate(items[begin].address)
    ahead = len(items) * ITEM_NBYTES + sum(len(item.source) for item in items[:begin])
    places = _places(region, items[begin:], ahead)
    if len(places) > 1:
        kernel = KERNEL_OF[items[begin].kernel]
        source = np.frombuffer(request.payload, np.uint8)
        receipt = channel.receipt(next_number, answers=False)
        commit_items(writer, region, kernel, places, source, receipt)


def _places(region: MappedRegion, items: tuple[Item, ...], ahead: int) -> list[Place]:
    """List where the first items lie, as long as they are like the first one, and right."""
    op, code, dtype = items[0].op, KERNEL_OF[items[0].kernel], region.spec.dtype
    places: list[Place] = []
    for item in items:
        first = item.address - region.address
        limit = first + item.nbytes
        is_inside = 0 <= first < limit <= region.nbytes
        is_one = first // STRIPE_NBYTES == (limit - 1) // STRIPE_NBYTES
        is_whole = (first | limit) % dtype.itemsize == 0
        if item.op is not op or item.kernel != code or not (is_inside and is_one and is_whole):
            break
        try:
            scale = scale_from(code, dtype, item.scale)
        except SmboxError:
            break
        places.append(Place(first, limit, ahead, scale))
        ahead += item.nbytes
    return places
