"""Journal slots: the data with which recovery undoes or completes a writer's last commit.

Each writer has one slot: the node, and each thread of a local client. The slot outlives its
process. Its id is that of the writer's lock file, so others can test whether it is alive.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SegmentError, SystemLimitError
from smbox.memory import layout, orders, process
from smbox.memory.layout import Slot, SlotState
from smbox.memory.locks import LockFile
from smbox.memory.orders import Block
from smbox.memory.segment import NoSegmentError, Segment, create_filled, listing
from smbox.native import library

BLOCK_NBYTES: Final = 4 * 1024
"""Bytes that a commit saves and changes at a time: old and new ones fit into the L1 cache."""


class Writer:
    """The journal slot and the lock file of one thread. Threads must not share it.

    Attributes:
        slot_id: id of the slot.
        locks: the writer's open lock file.
        ref: the ``struct writer``, as an argument of the native library.
        order: memory for one order.
        short: ``smbox_commit``, which keeps the GIL.
        long: ``smbox_commit``, which releases the GIL.

    Args:
        segment: the slot's segment.
        locks: an open lock file of the node that only this writer uses.
        block_nbytes: see ``BLOCK_NBYTES``; a multiple of 64.
    """

    def __init__(
        self, segment: Segment, locks: LockFile, block_nbytes: int = BLOCK_NBYTES
    ) -> None:
        self.segment = segment
        self.locks = locks
        words = slot_words(segment)
        self.slot_id = int(words[Slot.ID])
        self.order = Block(orders.ORDER_NBYTES)
        fields = orders.address_of(words), locks.word.address, block_nbytes
        self.ref = orders.block_of(*fields).ref
        native = library.load()
        self.short: Any = native.short.smbox_commit
        self.long: Any = native.long.smbox_commit

    @classmethod
    def create(cls, node: str) -> Self:
        """Create a slot of this process in the memory of ``node``.

        Raises:
            SegmentError: the node has no memory on this host.
            OutOfMemoryError: no room for the slot.
        """
        locks = LockFile(node)  # garbage collection closes it if this fails
        slot_id = locks.id
        locks.check_own()  # a forked child has no id
        name = layout.slot_name(node, slot_id)
        while True:
            # A node that starts removes incomplete segments.
            with suppress(NoSegmentError, FileNotFoundError):
                with create_filled(node, name, Slot.NBYTES, slot_id) as segment:
                    words = slot_words(segment)
                    words[Slot.MAGIC] = Slot.MAGIC_VALUE
                    words[Slot.FORMAT] = layout.FORMAT
                    words[Slot.ID] = slot_id
                    words[Slot.PID], words[Slot.PID_STARTED] = process.identity()
                    words[Slot.STATE] = SlotState.FREE
                return cls(segment, locks)

    def close(self) -> None:
        """Remove the slot. Call it only between commits."""
        self.segment.unlink()
        self.locks.close()


def slot_words(segment: Segment) -> NDArray[np.uint64]:
    """View the header words of a slot."""
    return segment.words(0, Slot.WORDS)


def slot_ids(node: str) -> list[int]:
    """List the ids of a node's slots, of living and of dead writers, also incomplete ones."""
    prefixes = (layout.name_of(node, "slot."), layout.name_of(node, "building."))
    found = [name.rpartition(".")[2] for name in listing(prefixes)]
    return [int(name, 16) for name in found if re.fullmatch("0[0-9a-f]{14}[13579bdf]", name)]


def is_alive(node: str, slot_id: int) -> bool:
    """Return whether the slot's writer lives."""
    try:
        with closing(LockFile(node)) as locks:
            return locks.is_alive(slot_id)
    except SegmentError:
        return False


def pid_of(node: str, slot_id: int) -> int:
    """Return the pid of the slot's writer; 0 if there is no slot, or it cannot be mapped."""
    with suppress(SegmentError, SystemLimitError):
        return int(slot_words(attach_slot(node, slot_id))[Slot.PID])
    return 0


def attach_slot(node: str, slot_id: int) -> Segment:
    """Map the slot of any writer.

    Raises:
        SegmentError: there is no such slot, or it has another format.
    """
    segment = Segment.attach(layout.slot_name(node, slot_id))
    known = [Slot.MAGIC_VALUE, layout.FORMAT]
    if segment.nbytes != Slot.NBYTES or slot_words(segment)[:2].tolist() != known:
        raise SegmentError(f"{segment.name} is not a journal slot of this format")
    return segment
