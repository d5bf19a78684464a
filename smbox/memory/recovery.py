"""Undoing or finishing the commit of a writer that died (or was interrupted) inside it.

Whoever finds a stripe open under a lock that nobody holds does this, and so does the node
for every slot before it serves. Each step may itself be killed and done again.

A commit may have several extents: the stripe itself and, for server-side optimizers, the
same stripe of sibling regions. All of them are closed under the lock of the first one; who
finds a sibling open takes that lock, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import journal, layout
from smbox.memory.busy import StripeBusy
from smbox.memory.channels import ChannelTable, RingFile
from smbox.memory.layout import Sibling, Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import OFFSET_MASK, MappedRegion
from smbox.memory.segment import Segment


class Extent(NamedTuple):
    """One of the stripes that a commit changes.

    Attributes:
        region: where it is.
        old: its old bytes, from the commit's first byte on.
        progress: how many of them are saved.
        commits: the stripe's count before.
    """

    region: MappedRegion
    old: NDArray[np.uint8]
    progress: int
    commits: int


def is_open(words: NDArray[np.uint64]) -> bool:
    """Tell whether a slot is in the middle of a commit."""
    return int(words[Slot.STATE]) & SlotState.MASK != SlotState.FREE


def recover_stripe(region: MappedRegion, stripe: int, locks: LockFile) -> None:
    """Undo or finish the open commit of a stripe that is locked by ``locks``.

    Raises:
        SegmentError: the journal slot is missing or speaks of another stripe; the stripe
            stays open, so that nobody takes its bytes for whole.
        StripeBusy: it is a sibling's stripe, and somebody else is closing that commit.
    """
    slot = journal.attach_slot(region.node, int(region.table[stripe, Stripe.WRITER]))
    with slot:
        words = slot_words(slot)
        if region.address not in _addresses(words) or int(words[Slot.STRIPE]) != stripe:
            raise SegmentError(
                f"the journal of stripe {stripe} of {region.spec.name!r} is damaged",
                slot=slot.name,
            )
        if int(words[Slot.REGION]) == region.address:
            close_commit(region, slot)
        else:
            _close_from_sibling(region, stripe, slot, locks)


def close_commit(main: MappedRegion, slot: Segment) -> None:
    """Undo (ARMED) or finish (COMMITTED) the commit that ``slot`` records.

    Args:
        main: the region of its first extent, whose stripe the caller holds.
        slot: of a writer that is dead, or is the caller.
    """
    words = slot_words(slot)
    stripe = int(words[Slot.STRIPE])
    state = int(words[Slot.STATE])
    if state & SlotState.MASK == SlotState.COMMITTED and words[Slot.ROW] != 0:
        ChannelTable.note(main.node, int(words[Slot.ROW]) - 1, int(words[Slot.NUMBER]))
    for extent in _extents(main, slot):
        row = extent.region.table[stripe]
        if row[Stripe.SEQ] & 1 and int(row[Stripe.WRITER]) == int(words[Slot.ID]):
            if state & SlotState.MASK == SlotState.ARMED:
                first = int(words[Slot.FIRST])
                undone = slice(first, first + extent.progress)
                extent.region.data[undone] = extent.old[: extent.progress]
            else:
                row[Stripe.COUNT] = extent.commits + 1
            row[Stripe.SEQ] += 1
    words[Slot.STATE] = state & ~SlotState.MASK | SlotState.FREE
    words[Sibling.COUNT] = 0


def slot_words(slot: Segment) -> NDArray[np.uint64]:
    """View the header words of a slot."""
    return slot.words(0, layout.PAGE_NBYTES // layout.WORD_NBYTES)


def _close_from_sibling(
    region: MappedRegion, stripe: int, slot: Segment, locks: LockFile
) -> None:
    with attached(region.node, int(slot_words(slot)[Slot.REGION])) as main:
        if main is None:
            raise SegmentError(
                f"stripe {stripe} of {region.spec.name!r} was left open by an update of a"
                " region that is gone; free it",
                slot=slot.name,
            )
        try:
            if not locks.try_lock(main.lock_byte(stripe)):
                raise StripeBusy(main, stripe)
            if region.table[stripe, Stripe.SEQ] & 1:
                close_commit(main, slot)
        finally:
            locks.unlock(main.lock_byte(stripe))


def _extents(main: MappedRegion, slot: Segment) -> Iterator[Extent]:
    """Yield the commit's extents, the first one last: its stripe stands for the others."""
    words = slot_words(slot)
    for index in range(int(words[Sibling.COUNT])):
        at = Sibling.BEGIN + index * Sibling.WORDS
        with attached(main.node, int(words[at + Sibling.REGION])) as region:
            if region is not None:
                old = journal.room(slot, index + 1)
                progress = int(words[at + Sibling.PROGRESS])
                yield Extent(region, old, progress, int(words[at + Sibling.COMMITS]))
    yield Extent(main, _old(main.node, slot), int(words[Slot.PROGRESS]), int(words[Slot.COUNT]))


def _old(node: str, slot: Segment) -> NDArray[np.uint8]:
    words = slot_words(slot)
    if words[Slot.RING_ENTRY] == 0:
        return journal.room(slot, 0)
    return RingFile.open(node, int(words[Slot.ROW]) - 1).old(int(words[Slot.NUMBER]))


def _addresses(words: NDArray[np.uint64]) -> list[int]:
    siblings = range(Sibling.BEGIN, Sibling.BEGIN + int(words[Sibling.COUNT]) * Sibling.WORDS)
    return [int(words[Slot.REGION])] + [int(words[at]) for at in siblings[:: Sibling.WORDS]]


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
