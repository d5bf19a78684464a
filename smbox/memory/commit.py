"""Commits and recovery: runs orders in the native library, and handles what stops them.

The procedures are in smbox/native/commit.c, which stops at the first obstacle. A stripe that
another writer holds raises StripeBusy. A stripe that a dead writer left open is recovered, and
the order continues.

A process that locks a stripe and finds it open recovers only this stripe, from the journal slot
of its writer: it undoes the commit, or completes it if it was committed. Two such processes,
the death of one, and freed siblings do no harm. Recovery never changes the slot; the node's
sweep removes it when all its stripes are closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.address import OFFSET_MAX
from smbox.errors import LayoutMismatchError, RegionFreedError, SegmentError
from smbox.memory import journal, layout, orders
from smbox.memory.channels import ChannelTable
from smbox.memory.journal import Writer, slot_words
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.orders import Block, Result
from smbox.memory.segment import NoSegmentError, Segment, unlink
from smbox.native import library

SHORT_NBYTES: Final = 64 * 1024
"""Calls with at most this many bytes keep the GIL: releasing it costs more than the commit."""


class StripeBusy(Exception):
    """Another writer holds the lock of a stripe; nothing was changed.

    This is not an error of the caller. A commit never waits: a local caller retries until its
    timeout, and the node serves other channels meanwhile.

    Args:
        region: the region.
        stripe: index of the locked stripe.
    """

    def __init__(self, region: MappedRegion, stripe: int) -> None:
        super().__init__(f"stripe {stripe} of {region.spec.name!r} is held by another writer")
        self.region = region
        self.stripe = stripe

    def facts(self) -> dict[str, object]:
        """Return the stripe and the pid of its holder, as facts of an error.

        The pid is 0 unless a writer holds the stripe: readers record no pid.
        """
        holder = int(self.region.table[self.stripe, Stripe.HOLDER])
        pid = journal.pid_of(self.region.node, holder)
        return {"region": self.region.spec.name, "stripe": self.stripe, "holder_pid": pid}


def run_orders(
    writer: Writer,
    block: Block,
    regions: Sequence[tuple[MappedRegion, ...]],
    nbytes: int,
    begin: int = 0,
) -> None:
    """Run orders to their end. After an error their outcomes say how far they are.

    Args:
        writer: of the calling thread.
        block: holds the orders.
        regions: the regions of each order.
        nbytes: of the operands; they decide whether the call keeps the GIL.
        begin: index of the first order.

    Raises:
        StripeBusy: another writer holds the next stripe of an order; call again to continue.
        RegionFreedError: a region of an order was freed.
        LayoutMismatchError: kernel, range and source do not fit; nothing changed.
        SegmentError: a dead writer's journal is damaged; the stripe stays open.
        PeerLostError: this is a forked child, and the writer its parent's; nothing changed.
    """
    run = writer.short if nbytes <= SHORT_NBYTES else writer.long
    at, limit = begin, begin + len(regions)
    while at < limit:
        ref = block.ref_at(at * orders.ORDER_NBYTES) if at else block.ref
        at += run(writer.ref, ref, limit - at)
        if at < limit:
            _, result, blocked, stripe = orders.order_outcome(block, at)
            region = next(each for each in regions[at - begin] if each.block.address == blocked)
            clear_obstacle(region, result, stripe, writer.locks)


def clear_obstacle(region: MappedRegion, result: int, stripe: int, locks: LockFile) -> None:
    """Let a commit or a read go on that a stripe stopped, or raise the error of its result.

    An open stripe is recovered. A locked one is taken over if its holder has died.

    Raises:
        StripeBusy, RegionFreedError, LayoutMismatchError, SegmentError, PeerLostError: as
            ``run_orders``.
    """
    is_unlocked = result == Result.BUSY and not region.table[stripe, Stripe.HOLDER]
    if result == Result.DONE or is_unlocked:  # DONE: it paused so that Python handles signals
        return
    if result in (Result.BUSY, Result.OPEN):
        recover_stripe(region, stripe, locks)
        return
    region.check_usable()
    locks.check_own()
    raise LayoutMismatchError("kernel, range or operand does not fit", region=region.spec.name)


def recover_stripe(region: MappedRegion, stripe: int, locks: LockFile) -> None:
    """Lock a stripe, and recover it if it is open.

    Raises:
        StripeBusy: its living writer, or another process that recovers it, holds the lock.
        SegmentError: the journal slot is missing or names another stripe; the stripe stays
            open, so that nobody uses its torn bytes.
        PeerLostError: this is a forked child, and ``locks`` its parent's; nothing changed.
    """
    try:
        if not region.try_lock(stripe, locks):
            raise StripeBusy(region, stripe)
        recover_held(region, stripe, locks)
    finally:  # an interrupt may come as soon as it is locked
        region.unlock(stripe, locks)


def recover_held(region: MappedRegion, stripe: int, locks: LockFile) -> None:
    """Recover a stripe that the caller has locked, if it is open; raises as above."""
    row = region.table[stripe]
    if not int(row[Stripe.SEQUENCE]) & Stripe.OPEN:
        return
    slot = journal.attach_slot(region.node, int(row[Stripe.WRITER]))
    ring = _ring_room(region.node, slot) if ring_needed(slot) else None
    recover, header = library.load().short.smbox_recover, orders.address_of(slot.bytes)
    old = 0 if ring is None else orders.address_of(ring)
    result = recover(region.block.address, stripe, header, old, locks.word.address)
    locks.check_own()
    if result != Result.DONE:
        raise SegmentError(
            f"the journal of stripe {stripe} of {region.spec.name!r} is damaged", slot=slot.name
        )


def ring_needed(slot: Segment) -> int:
    """Return the ring with the old bytes that undo a slot's commit; 0: none."""
    words = slot_words(slot)
    is_armed = int(words[Slot.STATE]) & SlotState.MASK == SlotState.ARMED
    return int(words[Slot.RING]) if is_armed else 0


def _ring_room(node: str, slot: Segment) -> NDArray[np.uint8]:
    """Map the old bytes of the first extent in a channel's ring.

    Raises:
        SegmentError: there is no such ring, or it is too short.
    """
    words = slot_words(slot)
    segment = Segment.attach(layout.ring_name(node, int(words[Slot.RING])))
    offset = int(words[Slot.RING_OFFSET])
    room = segment.bytes[offset : offset + int(words[Slot.PROGRESS])]
    if room.size != int(words[Slot.PROGRESS]):
        raise SegmentError(f"{segment.name} is shorter than {slot.name} says", slot=slot.name)
    return room


def sweep_slot(node: str, slot_id: int, locks: LockFile, channels: ChannelTable) -> bool:
    """Recover the stripes that a dead writer left open, and remove its slot.

    Args:
        node: name of the memory node; this process owns its memory.
        slot_id: id of the slot.
        locks: a holder of locks that only the caller uses.
        channels: the node's channels.

    Returns:
        Whether the slot was removed. Otherwise its writer lives or has removed it, or a living
        process holds one of the stripes: try again later.

    Raises:
        SegmentError: the slot is damaged, or a region cannot be mapped; the slot stays.
    """
    if locks.is_alive(slot_id):
        return False
    try:
        slot = journal.attach_slot(node, slot_id)
    except NoSegmentError:
        unlink(layout.building_name(node, slot_id))  # it was not complete
        return False
    ring = ring_needed(slot)
    channels.pinned_rings.add(ring)
    is_recovered = _recover_all(node, slot_words(slot), locks, channels)
    if is_recovered:
        slot.unlink()
        channels.release_ring(ring)
    return is_recovered


def _recover_all(
    node: str, words: NDArray[np.uint64], locks: LockFile, channels: ChannelTable
) -> bool:
    """Recover a dead writer's stripes, and record what it committed for a channel.

    The slot of a dead writer never changes: it stays COMMITTED after its stripes are closed.
    """
    state = int(words[Slot.STATE]) & SlotState.MASK
    if state == SlotState.COMMITTED and words[Slot.CHANNEL] != 0:
        channels.apply_committed(
            int(words[Slot.CHANNEL]) - 1, int(words[Slot.SERIAL]), int(words[Slot.NUMBER])
        )
    extents = int(words[Slot.EXTENTS]) if state != SlotState.FREE else 0
    if extents > Slot.EXTENTS_MAX:
        raise SegmentError("a journal slot is damaged", extents=extents)
    regions = [int(words[Slot.REGION + extent]) for extent in range(extents)]
    recovered = [_recover_region(node, region, words, locks) for region in regions]
    return all(recovered)


def _recover_region(
    node: str, address: int, words: NDArray[np.uint64], locks: LockFile
) -> bool:
    """Recover a slot's stripe in a region; return False if another process holds it."""
    stripe = int(words[Slot.STRIPE])
    try:
        region = MappedRegion.attach(node, address & OFFSET_MAX)
        if stripe >= region.stripe_count:
            raise SegmentError("a journal slot is damaged", stripe=stripe)
        row = region.table[stripe]
        if int(row[Stripe.SEQUENCE]) & Stripe.OPEN and row[Stripe.WRITER] == words[Slot.ID]:
            recover_stripe(region, stripe, locks)
    except StripeBusy:
        return False
    except RegionFreedError:
        pass  # it needs no recovery
    return True
