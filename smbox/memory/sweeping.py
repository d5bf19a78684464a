"""Taking away the slots of dead writers, after undoing or finishing what they left open."""

from __future__ import annotations

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import journal, recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.hold import Hold
from smbox.memory.layout import Intent, RegionHeader, Slot
from smbox.memory.locks import LockFile
from smbox.memory.segment import NoSegmentError, Segment
from smbox.memory.wide import settle_wide


def recover_slot(node: str, slot_id: int, locks: LockFile) -> bool:
    """Undo or finish what a dead writer left open, and remove its slot.

    Args:
        node: name of the memory node.
        slot_id: a slot whose writer is dead.
        locks: the caller's own open of the lock file.

    Returns:
        False if a stripe is held by a live writer just now: try again later.
    """
    with journal.attach_slot(node, slot_id) as slot:
        if not (_close_wide(node, slot, locks) and _close_stripe(node, slot, locks)):
            return False
        slot.unlink()
    return True


def is_operand(node: str, address: int) -> bool:
    """Tell whether a whole change that is not closed takes its operand from a region."""
    for slot_id in journal.slot_ids(node):
        try:
            slot = journal.attach_slot(node, slot_id)
        except NoSegmentError:  # taken away meanwhile
            continue
        except SegmentError:  # not to be read, at least just now: it may be
            return True
        with slot:
            words = recovery.slot_words(slot)
            if words[Intent.OPEN] != 0 and int(words[Intent.SOURCE]) == address:
                return True
    return False


def _close_wide(node: str, slot: Segment, locks: LockFile) -> bool:
    words = recovery.slot_words(slot)
    if words[Intent.OPEN] == 0:
        return True
    with recovery.attached(node, int(words[Intent.OPEN])) as region:
        if region is None or int(region.header[RegionHeader.WIDE]) != int(words[Slot.ID]):
            return True
        hold = Hold(region, locks, range(region.stripe_count))
        try:
            hold.take()
            settle_wide(region, locks)
        except StripeBusy:
            return False
        except RegionFreedError:  # with all that was half changed in it
            return True
        finally:
            hold.release()
    return True


def _close_stripe(node: str, slot: Segment, locks: LockFile) -> bool:
    words = recovery.slot_words(slot)
    if not recovery.is_open(words):
        return True
    with recovery.attached(node, int(words[Slot.REGION])) as region:
        if region is None:
            return True
        byte = region.lock_byte(int(words[Slot.STRIPE]))
        try:
            if not locks.try_lock(byte):
                return False
            recovery.close_commit(region, slot)
        finally:
            locks.unlock(byte)
    return True
