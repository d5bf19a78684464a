"""The one procedure by which bytes of a region change.

    lock the stripe (one OFD byte of the node's lock file)
    seq odd: the last writer died here: put its old bytes back, or finish its last words
    region FREED: error
    slot = ARMED with everything recovery needs; stripe.writer = slot; seq odd
    block by block: old bytes into the slot, progress published, the kernel on that block
    slot = COMMITTED            <- one store: before it the change never happened, after it did
    applied[channel] = number; count += 1; seq even; slot FREE; unlock

The same code whether the node's lane runs it for a remote client or a client's thread runs
it on memory it has mapped. The answer of a change is always the old bytes of its range.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from smbox.memory import accel, recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import RingFile
from smbox.memory.insist import insist
from smbox.memory.journal import Writer
from smbox.memory.layout import Ring, Slot, SlotState, Stripe, ring_entry
from smbox.memory.mapped import MappedRegion, Piece


def commit(
    writer: Writer,
    region: MappedRegion,
    piece: Piece,
    change: Change,
    receipt: Receipt | None = None,
) -> NDArray[np.uint8]:
    """Change the bytes of ``piece`` by ``change``, entirely or not at all.

    An exception at any line (a KeyboardInterrupt first of all) leaves the stripe unlocked and
    either as it was or with the change complete; ``commits(writer)`` tells which.

    Returns:
        The old bytes of the piece, ``u8[limit - first]``: a view that is valid until the
        writer's next commit, or the channel's next answer in that entry of its ring.

    Raises:
        StripeBusy: another writer holds the stripe; nothing changed.
        RegionFreedError: the region was freed; nothing changed.
    """
    accel.prepare(piece.limit - piece.first)  # here, for below this the stripe is locked
    writer.settle()  # what was left open when an exception cut off the settling of another
    writer.unsettled = partial(_settle, writer, region, piece)
    try:
        _lock(writer, region, piece)
        old = _commit(writer, region, piece, change, receipt)
        writer.locks.unlock(region.lock_byte(piece.stripe))
        writer.unsettled = None
    except BaseException:
        writer.settle()
        raise
    return old


def commit_held(writer: Writer, region: MappedRegion, piece: Piece, change: Change) -> None:
    """Change a piece whose stripe the caller holds, with nothing open in it; it stays held.

    That the region was freed meanwhile does not stop it: what lies under a lock is not taken
    away. An exception leaves the stripe as ``commit`` does, but held. Compiled code is used if
    it is loaded: with locks held nobody waits for that.
    """
    try:
        _commit(writer, region, piece, change, None)
    except BaseException:
        insist(lambda: close_own(writer, region))
        raise


def commits(writer: Writer) -> int:
    """Return how many commits the writer has made; an interrupted caller compares."""
    return int(writer.words[Slot.STATE]) >> SlotState.BITS


def _settle(writer: Writer, region: MappedRegion, piece: Piece) -> None:
    """Undo or finish what an exception left open, and unlock."""
    close_own(writer, region)
    writer.locks.unlock(region.lock_byte(piece.stripe))
    writer.unsettled = None


def close_own(writer: Writer, region: MappedRegion) -> None:
    """Undo or finish what the writer has open in a stripe of ``region``, which is held."""
    if recovery.is_open(writer.words):
        recovery.close_commit(region, writer.segment)


def _lock(writer: Writer, region: MappedRegion, piece: Piece) -> None:
    if not writer.locks.try_lock(region.lock_byte(piece.stripe)):
        raise StripeBusy(region, piece.stripe)
    if region.table[piece.stripe, Stripe.SEQ] & 1:
        recovery.recover_stripe(region, piece.stripe, writer.locks)
    region.check_usable()


def _commit(
    writer: Writer,
    region: MappedRegion,
    piece: Piece,
    change: Change,
    receipt: Receipt | None,
) -> NDArray[np.uint8]:
    stripe = region.table[piece.stripe]
    slot = writer.words
    old = _arm(writer, region, piece, change, receipt)
    stripe[Stripe.WRITER] = writer.slot_id
    stripe[Stripe.SEQ] += 1
    accel.journaled(
        change.kernel,
        region.data[piece.first : piece.limit],
        change.source,
        old,
        region.spec.dtype,
        change.scale,
        slot,
        Slot.PROGRESS,
        change.delta,
    )
    if receipt is not None and receipt.ring is not None:
        receipt.ring.header(receipt.number)[Ring.NUMBER] = receipt.number
    slot[Slot.STATE] += (1 << SlotState.BITS) + SlotState.COMMITTED - SlotState.ARMED
    if receipt is not None:
        receipt.row.applied = receipt.number
    stripe[Stripe.COUNT] += 1
    stripe[Stripe.SEQ] += 1
    slot[Slot.STATE] -= SlotState.COMMITTED
    return old


def _arm(
    writer: Writer,
    region: MappedRegion,
    piece: Piece,
    change: Change,
    receipt: Receipt | None,
) -> NDArray[np.uint8]:
    """Write down all that recovery needs; return where the old bytes go."""
    slot = writer.words
    slot[Slot.REGION] = region.address
    slot[Slot.STRIPE] = piece.stripe
    slot[Slot.FIRST] = piece.first
    slot[Slot.LIMIT] = piece.limit
    slot[Slot.PROGRESS] = 0
    slot[Slot.COUNT] = region.table[piece.stripe, Stripe.COUNT]
    slot[Slot.KERNEL] = change.kernel
    old = writer.old
    slot[Slot.ROW] = slot[Slot.NUMBER] = slot[Slot.RING_ENTRY] = 0
    if receipt is not None:
        slot[Slot.ROW] = receipt.row.index + 1
        slot[Slot.NUMBER] = receipt.number
        if receipt.ring is not None:
            old = _open_entry(receipt.ring, receipt.number, piece)
            slot[Slot.RING_ENTRY] = ring_entry(receipt.number) + 1
    slot[Slot.STATE] += SlotState.ARMED - SlotState.FREE
    return old[: piece.limit - piece.first]


def _open_entry(ring: RingFile, number: int, piece: Piece) -> NDArray[np.uint8]:
    header = ring.header(number)
    header[Ring.NUMBER] = 0
    header[Ring.RESULT_NBYTES] = piece.limit - piece.first
    return ring.old(number)
