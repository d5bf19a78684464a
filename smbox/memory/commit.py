"""Commits and recovery: orders to the native library, and what stands in their way.

The procedures are smbox/native/commit.c. C stops at the first obstacle. A stripe that somebody
holds becomes StripeBusy; one that a dead writer left open is recovered, and the order goes on.

Who finds a stripe open, under its lock, closes that stripe only, from the slot of the writer
that it names: undone, or finished if it had committed. Two who do it, one who dies at it, or
freed siblings do no harm. The slot itself never changes; the node's sweep removes it once no
stripe is open with it.
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
from smbox.memory.segment import NoSegmentError, Segment
from smbox.native import library

SHORT_NBYTES: Final = 64 * 1024
"""Up to so many bytes a call keeps the GIL: giving it up costs more than the commit."""

_FLOAT32_NBYTES: Final = 4


class StripeBusy(Exception):
    """The lock of a stripe is held by another writer; nothing was changed.

    A state of affairs, not an error of the caller's. The commit never waits: a local caller
    tries again until its timeout, the node goes on with other channels.

    Args:
        region: the region.
        stripe: index of the stripe that is held.
    """

    def __init__(self, region: MappedRegion, stripe: int) -> None:
        super().__init__(f"stripe {stripe} of {region.spec.name!r} is held by another writer")
        self.region = region
        self.stripe = stripe

    def facts(self) -> dict[str, object]:
        """Name the stripe and the process that holds it, for an error."""
        return {
            "region": self.region.spec.name,
            "stripe": self.stripe,
            "holder_pid": self.holder_pid(),
        }

    def holder_pid(self) -> int:
        """Return the pid of the process that holds the stripe now, or 0 where nobody can tell.

        It is known inside a commit of the stripe; a reader that holds it has left no name. Who
        wrote last may be anybody.
        """
        row = self.region.table[self.stripe]
        if not int(row[Stripe.SEQUENCE]) & Stripe.OPEN:
            return 0
        return journal.living_pid(self.region.node, int(row[Stripe.WRITER]))


def run_orders(
    writer: Writer,
    block: Block,
    regions: Sequence[tuple[MappedRegion, ...]],
    nbytes: int,
    begin: int = 0,
) -> None:
    """Run orders of a block to their end; their outcomes tell how far they are, always.

    Args:
        writer: the calling thread's.
        block: holds the orders.
        regions: those of each order.
        nbytes: of their operands, by which the call keeps the GIL or not.
        begin: index of the first order.

    Raises:
        StripeBusy, RegionFreedError: the stripe that an order has come to is held, or is no
            more; call again to go on.
        LayoutMismatchError: kernel, range and source do not fit each other; nothing changed.
        SegmentError: a dead writer's journal is damaged; the stripe stays open.
    """
    run = writer.short if nbytes <= SHORT_NBYTES else writer.long
    at, limit = begin, begin + len(regions)
    while at < limit:
        ref = block.ref_at(at * orders.ORDER_NBYTES) if at else block.ref
        at += run(writer.ref, ref, limit - at)
        if at < limit:
            _, result, blocked, stripe = orders.order_outcome(block, at)
            touched = regions[at - begin]
            region = next(
                (each for each in touched if each.block.address == blocked), touched[0]
            )
            clear_obstacle(region, result, stripe, writer.locks)


def clear_obstacle(region: MappedRegion, result: int, stripe: int, locks: LockFile) -> None:
    """Recover the stripe that stopped a commit or a read, or raise what it means.

    Raises:
        StripeBusy, RegionFreedError, LayoutMismatchError, SegmentError: as ``run_orders``.
    """
    if result == Result.DONE:
        return  # the library has paused, for signals to come through
    if result == Result.OPEN:
        recover_stripe(region, stripe, locks)
        return
    if result == Result.BUSY:
        raise StripeBusy(region, stripe)
    region.check_usable()
    if result == Result.BAD_ORDER:
        name = region.spec.name
        raise LayoutMismatchError("kernel, range and operand do not fit", region=name)
    raise SegmentError("the node's lock file refuses a lock", region=region.spec.name)


def moved(
    old: NDArray[np.uint8], source: NDArray[np.uint8], rate: float, operand: int
) -> NDArray[np.uint8]:
    """Return the operand x of a narrow exchange, moved: ``x - rate * (x - c)``.

    Bit for bit what the commit's kernel computes, rounded once to the operand's type.

    Args:
        old: the bytes of c, float32.
        source: the bytes of x, as many elements of the operand's type.
        rate: the moving rate.
        operand: dtype code of float16 or bfloat16.
    """
    out = np.empty_like(source)
    addresses = [orders.address_of(each) for each in (old, source, out)]
    bits = int(np.float64(rate).view(np.uint64))
    library.load().long.smbox_moved(*addresses, old.size // _FLOAT32_NBYTES, bits, operand)
    return out


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
        if ring_needed(slot):
            areas[0] = _ring_room(region.node, slot)
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


def ring_needed(slot: Segment) -> int:
    """Return the ring whose bytes undo what a slot has begun; 0: none does."""
    words = slot_words(slot)
    is_armed = int(words[Slot.STATE]) & SlotState.MASK == SlotState.ARMED
    return int(words[Slot.RING]) if is_armed else 0


def _ring_room(node: str, slot: Segment) -> NDArray[np.uint8]:
    """Map where the first extent's old bytes lie in a channel's ring.

    Raises:
        SegmentError: there is no such ring, or they cannot lie there.
    """
    words = slot_words(slot)
    segment = Segment.attach(layout.ring_name(node, int(words[Slot.RING])))
    offset = int(words[Slot.RING_OFFSET])
    room = segment.bytes[offset : offset + int(words[Slot.PROGRESS])]
    if room.size != int(words[Slot.PROGRESS]):
        raise SegmentError(
            f"{segment.name} does not hold what {slot.name} says", slot=slot.name
        )
    return room


def sweep_slot(node: str, slot_id: int, locks: LockFile, channels: ChannelTable) -> bool:
    """Remove a slot whose writer is dead, once every stripe that it left open is closed.

    Args:
        node: name of the memory node, whose own this process is.
        slot_id: whose slot.
        locks: the caller's own open of the lock file.
        channels: the node's.

    Returns:
        False if the writer lives or took the slot away, or if a live one holds a stripe just
        now: try again later.

    Raises:
        SegmentError: the slot is damaged, or a region cannot be mapped; the slot stays.
    """
    byte = journal.alive_byte(slot_id)
    if not locks.try_lock(byte):
        return False
    try:
        try:
            slot = journal.attach_slot(node, slot_id)
        except NoSegmentError:
            return False
        with slot:
            ring = ring_needed(slot)
            channels.pinned_rings.add(ring)
            is_closed = _close_all(node, slot_words(slot), locks, channels)
            if is_closed:
                slot.unlink()
                channels.release_ring(ring)
            return is_closed
    finally:
        locks.unlock(byte)


def _close_all(
    node: str, words: NDArray[np.uint64], locks: LockFile, channels: ChannelTable
) -> bool:
    """Close what a dead writer left open, and note what it committed for a channel.

    Its commit may be closed already: then the slot is still COMMITTED, for it never changes
    once its writer is dead.
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
    closed = [_close_stripe(node, region, words, locks) for region in regions]
    return all(closed)


def _close_stripe(node: str, address: int, words: NDArray[np.uint64], locks: LockFile) -> bool:
    """Close what a slot left open in a region; False if somebody holds the stripe."""
    stripe = int(words[Slot.STRIPE])
    try:
        region = MappedRegion.attach(node, address & OFFSET_MAX)
    except RegionFreedError:
        return True  # gone, with all that could be torn in it
    try:
        if stripe >= region.stripe_count:
            raise SegmentError("a journal slot is damaged", stripe=stripe)
        row = region.table[stripe]
        if int(row[Stripe.SEQUENCE]) & Stripe.OPEN and row[Stripe.WRITER] == words[Slot.ID]:
            recover_stripe(region, stripe, locks)
    except StripeBusy:
        return False
    finally:
        region.close()
    return True
