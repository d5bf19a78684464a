"""Closing a stripe that a dead writer left open: undone, or finished if it had committed.

Who finds it open, under the stripe's lock, closes that stripe only, from the slot of the writer
that the stripe names. Two who do it, one who dies at it, or freed siblings do no harm.
The slot itself never changes; the node's sweep removes it once no stripe is open with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import journal, layout, orders
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import OFFSET_MASK, MappedRegion
from smbox.memory.orders import Result
from smbox.memory.segment import Segment
from smbox.native import library


def is_open(words: NDArray[np.uint64]) -> bool:
    """Tell whether a slot is in the middle of a commit."""
    return int(words[Slot.STATE]) & SlotState.MASK != SlotState.FREE


def recover_stripe(region: MappedRegion, stripe: int, locks: LockFile) -> None:
    """Lock a stripe and close it, if it is open.

    Raises:
        StripeBusy: somebody holds it: its writer lives, or another one recovers it.
        SegmentError: the journal slot is missing or speaks of another stripe; the stripe
            stays open, so that nobody takes its bytes for whole.
    """
    byte = region.lock_byte(stripe)
    if not locks.try_lock(byte):
        raise StripeBusy(region, stripe)
    try:
        recover_held(region, stripe)
    finally:
        locks.unlock(byte)


def recover_held(region: MappedRegion, stripe: int) -> None:
    """Close a stripe that the caller has locked, if it is open; raises as above."""
    row = region.table[stripe]
    if not int(row[Stripe.SEQUENCE]) & Stripe.OPEN:
        return
    with journal.attach_slot(region.node, int(row[Stripe.WRITER])) as slot:
        areas = [journal.undo_area(slot, extent) for extent in range(Slot.EXTENTS_MAX)]
        ring = _ring_room(region.node, slot)
        if ring is not None:
            areas[0] = ring
        addresses = np.array([orders.address_of(area) for area in areas], np.uint64)
        result = library.load().short.smbox_recover(
            region.block.address,
            stripe,
            orders.address_of(slot.bytes),
            orders.address_of(addresses),
        )
        if result != Result.DONE:
            raise SegmentError(
                f"the journal of stripe {stripe} of {region.spec.name!r} is damaged",
                slot=slot.name,
            )


def slot_words(slot: Segment) -> NDArray[np.uint64]:
    """View the header words of a slot."""
    return slot.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)


def _ring_room(node: str, slot: Segment) -> NDArray[np.uint8] | None:
    """Map where the first extent's old bytes lie in a channel's ring, if that is so."""
    words = slot_words(slot)
    ring = int(words[Slot.RING])
    if ring == 0:
        return None
    segment = Segment.attach(layout.ring_name(node, ring))
    offset = int(words[Slot.RING_OFFSET])
    return segment.bytes[offset : offset + layout.ring_entry_nbytes(ring)]


@contextmanager
def attached(node: str, address: int) -> Iterator[MappedRegion | None]:
    """Map a region for a moment; None where it is gone, with all that could be torn in it."""
    try:
        region = MappedRegion.attach(node, address & OFFSET_MASK)
    except RegionFreedError:
        yield None
        return
    try:
        yield region
    finally:
        region.close()
