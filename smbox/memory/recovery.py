"""Undoing or finishing the commit of a writer that died (or was interrupted) inside it.

Whoever finds a stripe open under a lock that nobody holds does this, and so does the node
for every slot before it serves. Each step may itself be killed and done again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SegmentError
from smbox.memory import journal, layout
from smbox.memory.channels import ChannelTable, RingFile
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import Segment


def is_open(words: NDArray[np.uint64]) -> bool:
    """Tell whether a slot is in the middle of a commit."""
    return int(words[Slot.STATE]) & SlotState.MASK != SlotState.FREE


def recover_stripe(region: MappedRegion, stripe: int) -> None:
    """Undo or finish the open commit of a stripe whose lock the caller holds.

    Raises:
        SegmentError: the journal slot is missing or speaks of another stripe; the stripe
            stays open, so that nobody takes its bytes for whole.
    """
    slot = journal.attach_slot(region.node, int(region.table[stripe, Stripe.WRITER]))
    with slot:
        words = slot_words(slot)
        if int(words[Slot.REGION]) != region.address or int(words[Slot.STRIPE]) != stripe:
            raise SegmentError(
                f"the journal of stripe {stripe} of {region.spec.name!r} is damaged",
                slot=slot.name,
            )
        close_stripe(region, stripe, slot)


def close_stripe(region: MappedRegion, stripe: int, slot: Segment) -> None:
    """Undo (ARMED) or finish (COMMITTED) the commit that ``slot`` records, under the lock."""
    words = slot_words(slot)
    row = region.table[stripe]
    mine = int(row[Stripe.WRITER]) == int(words[Slot.ID])
    if mine and row[Stripe.SEQ] & 1:
        if int(words[Slot.STATE]) & SlotState.MASK == SlotState.ARMED:
            _undo(region, slot)
        else:
            _finish(region, row, words)
        row[Stripe.SEQ] += 1
    words[Slot.STATE] = int(words[Slot.STATE]) & ~SlotState.MASK | SlotState.FREE


def _undo(region: MappedRegion, slot: Segment) -> None:
    words = slot_words(slot)
    first, progress = int(words[Slot.FIRST]), int(words[Slot.PROGRESS])
    region.data[first : first + progress] = _old(region.node, slot)[:progress]


def _old(node: str, slot: Segment) -> NDArray[np.uint8]:
    words = slot_words(slot)
    if words[Slot.RING_ENTRY] == 0:
        return slot.bytes[Slot.OLD_AT :]
    return RingFile.open(node, int(words[Slot.ROW]) - 1).old(int(words[Slot.NUMBER]))


def _finish(region: MappedRegion, row: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    if words[Slot.ROW] != 0:
        ChannelTable.note(region.node, int(words[Slot.ROW]) - 1, int(words[Slot.NUMBER]))
    row[Stripe.COUNT] = int(words[Slot.COUNT]) + 1


def slot_words(slot: Segment) -> NDArray[np.uint64]:
    """View the header words of a slot."""
    return slot.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)
