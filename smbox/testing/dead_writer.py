"""The state that a writer leaves when it is killed during a commit."""

from __future__ import annotations

import numpy as np

from smbox.memory import layout
from smbox.memory.journal import Writer, slot_words
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.mapped import MappedRegion

GARBAGE = 0x55


def leave_open(
    *regions: MappedRegion,
    first: int,
    limit: int,
    saved: int | None = None,
    state: int = SlotState.ARMED,
    channel: tuple[int, int, int] = (0, 0, 0),
) -> int:
    """Fill a range of a stripe with garbage and leave it open, as a killed writer would.

    Args:
        regions: the regions that the commit changed, all in the same range.
        first: first byte of the range.
        limit: byte behind it.
        saved: bytes that the writer had saved and changed; None: all.
        state: state of the slot: ARMED or COMMITTED.
        channel: row of the channel table + 1, its serial, and the number of the commit.

    Returns:
        The id of the dead writer's slot.
    """
    saved = limit - first if saved is None else saved
    stripe = first // layout.STRIPE_NBYTES
    writer = Writer.create(regions[0].node)
    words = slot_words(writer.segment)
    words[Slot.STRIPE], words[Slot.FIRST] = stripe, first
    words[Slot.PROGRESS], words[Slot.EXTENTS] = saved, len(regions)
    words[Slot.CHANNEL], words[Slot.SERIAL], words[Slot.NUMBER] = channel
    words[Slot.STATE] = state
    for extent, region in enumerate(regions):
        words[Slot.REGION + extent] = region.address
        changed = region.data[first : first + saved]
        begin = Slot.OLD_AT + extent * layout.STRIPE_NBYTES  # of the undo area
        np.copyto(writer.segment.bytes[begin : begin + saved], changed)
        region.table[stripe, Stripe.WRITER] = writer.slot_id
        region.table[stripe, Stripe.HOLDER] = writer.slot_id
        region.table[stripe, Stripe.SEQUENCE] |= np.uint64(Stripe.OPEN)
        changed[:] = GARBAGE
    writer.locks.close()
    return writer.slot_id
