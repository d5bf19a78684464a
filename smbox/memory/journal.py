"""A writer's journal slot: what recovery needs to undo or finish its last commit.

One slot per writer: the node, or one thread of a local client. The slot outlives its
process. A lock byte that the writer holds tells everybody whether it still lives.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SegmentError
from smbox.memory import layout, orders, process
from smbox.memory.layout import LockByte, Slot, SlotState
from smbox.memory.locks import LockFile
from smbox.memory.orders import Block
from smbox.memory.segment import Segment, create_atomically, listing
from smbox.native import library

BLOCK_NBYTES: Final = 4 * 1024
"""Bytes that a commit saves, publishes and changes at a time; old and new ones lie in L1."""


class Writer:
    """The slot that one thread commits through, with the lock file it locks by.

    Not to be shared by threads.

    Attributes:
        words: the slot's header words, ``u64``.
        slot_id: the slot's.
        locks: its open lock file.
        block, ref: the writer as ``struct writer``, for the native library.
        order: one order of it, to be filled.
        short: runs orders, and keeps the GIL.
        long: runs orders, and gives up the GIL.

    Args:
        segment: the slot's segment.
        locks: an open of the node's lock file that belongs to this writer alone.
        block_nbytes: see ``BLOCK_NBYTES``; a multiple of 64.
    """

    def __init__(
        self, segment: Segment, locks: LockFile, block_nbytes: int = BLOCK_NBYTES
    ) -> None:
        self.segment = segment
        self.locks = locks
        self.words = slot_words(segment)
        self.slot_id = int(self.words[Slot.ID])
        self.order = Block(orders.ORDER_NBYTES)
        areas = [undo_area(segment, extent) for extent in range(Slot.EXTENTS_MAX)]
        addresses = [orders.address_of(area) for area in areas]
        slot = orders.address_of(self.words)
        self.block = orders.block_of(slot, *addresses, locks.fd, block_nbytes)
        self.ref = self.block.ref
        native = library.load()
        self.short: Any = native.short.smbox_commit
        self.long: Any = native.long.smbox_commit

    @property
    def done(self) -> int:
        """Byte up to which its last order was committed."""
        return orders.order_outcome(self.order)[0]

    @classmethod
    def create(cls, node: str) -> Self:
        """Make a slot of this process in the memory of ``node``.

        Raises:
            SegmentError: the node has no memory here.
            OutOfMemoryError: no room for the slot.
        """
        locks = LockFile(node)  # closed when it is forgotten, where no slot can be made
        return cls(_make_slot(node, _new_id(locks)), locks)

    def close(self) -> None:
        """Remove the slot, between commits."""
        self.segment.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Drop a slot that a forked child inherited: it is its parent's."""
        self.words = self.words[:0].copy()
        self.segment.close()
        self.locks.close()


def slot_words(segment: Segment) -> NDArray[np.uint64]:
    """View the header words of a slot."""
    return segment.words(0, Slot.WORDS)


def undo_area(segment: Segment, extent: int) -> NDArray[np.uint8]:
    """View a slot's undo area, for the old bytes of one extent: ``u8[STRIPE_NBYTES]``."""
    begin = Slot.OLD_AT + extent * layout.STRIPE_NBYTES
    return segment.bytes[begin : begin + layout.STRIPE_NBYTES]


def _new_id(locks: LockFile) -> int:
    while True:
        slot_id = secrets.randbits(59) | 1
        if locks.try_lock(alive_byte(slot_id)):
            return slot_id


def alive_byte(slot_id: int) -> int:
    """Return the lock byte that the slot's writer holds while it lives."""
    return LockByte.SLOTS + slot_id


def slot_ids(node: str) -> list[int]:
    """List the slots of a node's writers, living and dead."""
    prefix = layout.slot_name(node, 0)[:-16]
    found = [name.removeprefix(prefix) for name in listing(prefix)]
    return [int(name, 16) for name in found if re.fullmatch("[0-9a-f]{16}", name)]


def is_alive(node: str, slot_id: int) -> bool:
    """Tell whether the slot's writer lives: what a dead one left open, another one closes."""
    try:
        with closing(LockFile(node)) as locks:
            return locks.is_held(alive_byte(slot_id))
    except SegmentError:
        return False


def living_pid(node: str, slot_id: int) -> int:
    """Return the pid of the process whose slot this is, or 0 where it is dead or gone."""
    if not is_alive(node, slot_id):
        return 0
    try:
        with attach_slot(node, slot_id) as segment:
            return int(slot_words(segment)[Slot.PID])
    except SegmentError:
        return 0


def _make_slot(node: str, slot_id: int) -> Segment:
    with create_atomically(node, layout.slot_name(node, slot_id), Slot.NBYTES) as segment:
        words = slot_words(segment)
        words[Slot.MAGIC] = Slot.MAGIC_VALUE
        words[Slot.FORMAT] = layout.FORMAT
        words[Slot.ID] = slot_id
        words[Slot.PID], words[Slot.PID_STARTED] = process.identity()
        words[Slot.STATE] = SlotState.FREE
    return segment


def attach_slot(node: str, slot_id: int) -> Segment:
    """Map a slot of any writer, for recovery or to name its holder.

    Raises:
        SegmentError: there is no such slot, or it is not one.
    """
    segment = Segment.attach(layout.slot_name(node, slot_id))
    known = [Slot.MAGIC_VALUE, layout.FORMAT]
    if segment.nbytes != Slot.NBYTES or slot_words(segment)[:2].tolist() != known:
        raise SegmentError(f"{segment.name} is no journal slot of this format")
    return segment
