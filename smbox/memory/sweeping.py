"""Taking away the slots of dead writers, once no stripe is open with them."""

from __future__ import annotations

from smbox.memory import journal, recovery
from smbox.memory.channels import ChannelTable
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.segment import Segment


def recover_slot(node: str, slot_id: int, locks: LockFile) -> bool:
    """Close every stripe that a dead writer left open, and remove its slot.

    Args:
        node: name of the memory node.
        slot_id: a slot whose writer is dead.
        locks: the caller's own open of the lock file.

    Returns:
        False if a stripe is held by a live writer just now: try again later.
    """
    with journal.attach_slot(node, slot_id) as slot:
        if not _close_stripes(node, slot, locks):
            return False
        slot.unlink()
    return True


def take_number(node: str, slot_id: int, channels: ChannelTable) -> None:
    """Note at a node's start the number that a dead slot says was committed.

    Its commit may be closed already: then the slot is still COMMITTED, for it never changes
    once its writer is dead.
    """
    with journal.attach_slot(node, slot_id) as slot:
        words = recovery.slot_words(slot)
        state = int(words[Slot.STATE]) & SlotState.MASK
        if state == SlotState.COMMITTED and words[Slot.CHANNEL] != 0:
            channels.apply_committed(
                int(words[Slot.CHANNEL]) - 1, int(words[Slot.SERIAL]), int(words[Slot.NUMBER])
            )


def _close_stripes(node: str, slot: Segment, locks: LockFile) -> bool:
    words = recovery.slot_words(slot)
    if not recovery.is_open(words):
        return True
    stripe, slot_id = int(words[Slot.STRIPE]), int(words[Slot.ID])
    is_closed = True
    for extent in range(int(words[Slot.EXTENTS])):
        with recovery.attached(node, int(words[Slot.REGION + extent])) as region:
            if region is None:
                continue
            row = region.table[stripe]
            if (
                not int(row[Stripe.SEQUENCE]) & Stripe.OPEN
                or int(row[Stripe.WRITER]) != slot_id
            ):
                continue
            byte = region.lock_byte(stripe)
            if not locks.try_lock(byte):
                is_closed = False
                continue
            try:
                recovery.recover_held(region, stripe)
            finally:
                locks.unlock(byte)
    return is_closed
