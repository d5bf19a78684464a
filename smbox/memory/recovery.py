"""Undoing or finishing the commit of a writer that died (or was interrupted) inside it.

Whoever finds a stripe open under a lock that nobody holds does this, and so does the node
for every slot before it serves. Each step may itself be killed and done again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import journal, layout
from smbox.memory.channels import RingFile
from smbox.memory.layout import Channel, Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import OFFSET_MASK, MappedRegion
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
        words = _words(slot)
        if int(words[Slot.REGION]) != region.address or int(words[Slot.STRIPE]) != stripe:
            raise SegmentError(
                f"the journal of stripe {stripe} of {region.spec.name!r} is damaged",
                slot=slot.name,
            )
        close_stripe(region, stripe, slot)


def close_stripe(region: MappedRegion, stripe: int, slot: Segment) -> None:
    """Undo (ARMED) or finish (COMMITTED) the commit that ``slot`` records, under the lock."""
    words = _words(slot)
    row = region.table[stripe]
    mine = int(row[Stripe.WRITER]) == int(words[Slot.ID])
    if mine and row[Stripe.SEQ] & 1:
        if int(words[Slot.STATE]) & SlotState.MASK == SlotState.ARMED:
            _undo(region, slot)
        else:
            _finish(region, row, words)
        row[Stripe.SEQ] += 1
    words[Slot.STATE] = int(words[Slot.STATE]) & ~SlotState.MASK | SlotState.FREE


def recover_slot(node: str, slot_id: int, locks: LockFile) -> bool:
    """Undo or finish what a dead writer left open, and remove its slot.

    Args:
        node: name of the memory node.
        slot_id: a slot whose writer is dead.
        locks: the caller's own open of the lock file.

    Returns:
        False if the stripe is held by a live writer just now: try again later.
    """
    with journal.attach_slot(node, slot_id) as slot:
        words = _words(slot)
        if is_open(words) and not _close_somewhere(node, slot, locks):
            return False
        slot.unlink()
    return True


def _close_somewhere(node: str, slot: Segment, locks: LockFile) -> bool:
    words = _words(slot)
    try:
        region = MappedRegion.attach(node, int(words[Slot.REGION]) & OFFSET_MASK)
    except RegionFreedError:
        return True  # it is gone, and with it all that could have been torn
    stripe = int(words[Slot.STRIPE])
    byte = region.lock_byte(stripe)
    if not locks.try_lock(byte):
        return False
    try:
        close_stripe(region, stripe, slot)
    finally:
        locks.unlock(byte)
        region.close()
    return True


def _undo(region: MappedRegion, slot: Segment) -> None:
    words = _words(slot)
    first, progress = int(words[Slot.FIRST]), int(words[Slot.PROGRESS])
    region.data[first : first + progress] = _old(region.node, slot)[:progress]


def _old(node: str, slot: Segment) -> NDArray[np.uint8]:
    words = _words(slot)
    if words[Slot.RING_ENTRY] == 0:
        return slot.bytes[Slot.OLD_AT :]
    return RingFile.open(node, int(words[Slot.ROW]) - 1).old(int(words[Slot.NUMBER]))


def _finish(region: MappedRegion, row: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    if words[Slot.ROW] != 0:
        with Segment.attach(layout.channels_name(region.node)) as table:
            at = (int(words[Slot.ROW]) - 1) * Channel.NBYTES
            applied = table.words(at, Channel.WORDS)
            applied[Channel.APPLIED] = max(
                int(applied[Channel.APPLIED]), int(words[Slot.NUMBER])
            )
    row[Stripe.COUNT] = int(words[Slot.COUNT]) + 1


def _words(slot: Segment) -> NDArray[np.uint64]:
    return slot.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)
