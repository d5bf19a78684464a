"""Commits of many free stripes in one compiled call without the GIL.

Imported only through accel.py. This is commit.py for the case that nothing is in the way;
word for word the same procedure, so change them together; but a caller has its share block by
block, not once the commit is done. At the first stripe where something is in the way (a lock
held, a commit left open, a freed region) it stops before it.

Between two stores whose order matters to a reader, or to recovery, stands a compiler barrier;
x86 keeps the order from there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import float64, int64, njit, types
from numpy.typing import NDArray

from smbox.memory.compiled import BYTES, SOURCE, WORDS, Operand, change_blocks
from smbox.memory.compiled_ops import address_of, barrier, try_lock, unlock
from smbox.memory.compiled_unlocked import change_all
from smbox.memory.layout import (
    OFFSET_BITS,
    STRIPE_NBYTES,
    Channel,
    Consistency,
    RegionHeader,
    RegionState,
    Ring,
    Slot,
    SlotState,
    Stripe,
)

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
TABLE: Final = types.Array(types.uint64, 2, "C")

# Compiled code takes numbers from globals, not from classes. Words are unsigned: uint64 with
# a signed number would become a float.
_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)
_OFFSET_MASK: Final = np.uint64((1 << OFFSET_BITS) - 1)
_ADDRESS: Final = RegionHeader.ADDRESS
_REGION_STATE: Final = RegionHeader.STATE
_CONSISTENCY: Final = RegionHeader.CONSISTENCY
_FREED: Final = np.uint64(RegionState.FREED)
_BY_STRIPE: Final = np.uint64(Consistency.STRIPE)
_NO_LOCKS: Final = np.uint64(Consistency.NONE)
_SEQ: Final = Stripe.SEQ
_COUNT: Final = Stripe.COUNT
_WRITER: Final = Stripe.WRITER
_ID: Final = Slot.ID
_STATE: Final = Slot.STATE
_SLOT_REGION: Final = Slot.REGION
_SLOT_STRIPE: Final = Slot.STRIPE
_SLOT_FIRST: Final = Slot.FIRST
_SLOT_LIMIT: Final = Slot.LIMIT
_SLOT_COUNT: Final = Slot.COUNT
_PROGRESS: Final = Slot.PROGRESS
_ROW: Final = Slot.ROW
_NUMBER: Final = Slot.NUMBER
_RING_ENTRY: Final = Slot.RING_ENTRY
_KERNEL: Final = Slot.KERNEL
_STATE_MASK: Final = np.uint64(SlotState.MASK)
_FREE: Final = np.uint64(SlotState.FREE)
_TO_ARMED: Final = np.uint64(SlotState.ARMED - SlotState.FREE)
_TO_COMMITTED: Final = np.uint64((1 << SlotState.BITS) + SlotState.COMMITTED - SlotState.ARMED)
_FROM_COMMITTED: Final = np.uint64(SlotState.COMMITTED - SlotState.FREE)
_APPLIED: Final = Channel.APPLIED
_ENTRIES: Final = Ring.ENTRIES
_ENTRY_WORDS: Final = Ring.HEADER_WORDS
_OLD_OFFSET: Final = Ring.OLD_OFFSET
_ENTRY_NUMBER: Final = Ring.NUMBER
_ENTRY_RESULT: Final = Ring.RESULT_NBYTES


class Note(NamedTuple):
    """By what a remote channel's commit is known again; a ``Receipt`` in numbers.

    Attributes:
        channel: words of the channel's row; empty where nobody has to know it again.
        mark: index of the row + 1.
        number: of the change.
        ring: words of the channel's ring; empty where the change answers nothing.
    """

    channel: Words
    mark: int
    number: int
    ring: Words


@njit
def _entry(note: Note) -> int:
    """Return the entry of the ring for the note's answer, as ``layout.ring_entry``."""
    entry: int = (note.number - 1) % _ENTRIES
    return entry


@njit
def _open(
    header: Words, row: Words, words: Words, stripe: int, first: int, limit: int, note: Note
) -> None:
    """Arm the slot and open the stripe."""
    words[_SLOT_REGION] = header[_ADDRESS]
    words[_SLOT_STRIPE] = stripe
    words[_SLOT_FIRST] = first
    words[_SLOT_LIMIT] = limit
    words[_PROGRESS] = _ZERO
    words[_SLOT_COUNT] = row[_COUNT]
    words[_ROW] = note.mark
    words[_NUMBER] = note.number
    words[_RING_ENTRY] = _ZERO
    if note.ring.size != 0:
        entry = _entry(note)
        note.ring[entry * _ENTRY_WORDS + _ENTRY_NUMBER] = _ZERO
        note.ring[entry * _ENTRY_WORDS + _ENTRY_RESULT] = limit - first
        words[_RING_ENTRY] = entry + 1
    barrier()
    words[_STATE] += _TO_ARMED
    barrier()
    row[_WRITER] = words[_ID]
    barrier()
    row[_SEQ] += _ONE
    barrier()


@njit
def _room(note: Note, old: int) -> int:
    """Return the address that the old bytes go to: the answer's, or the writer's own room."""
    if note.ring.size == 0:
        return old
    room: int = address_of(note.ring) + _OLD_OFFSET + _entry(note) * STRIPE_NBYTES
    return room


@njit
def _close(row: Words, words: Words, note: Note) -> None:
    """Commit, and write the last words."""
    barrier()
    if note.ring.size != 0:
        note.ring[_entry(note) * _ENTRY_WORDS + _ENTRY_NUMBER] = note.number
        barrier()
    words[_STATE] += _TO_COMMITTED
    barrier()
    if note.channel.size != 0:
        note.channel[_APPLIED] = note.number
        barrier()
    row[_COUNT] += _ONE
    barrier()
    row[_SEQ] += _ONE
    barrier()
    words[_STATE] -= _FROM_COMMITTED
    barrier()


@njit
def is_ready(words: Words, old: Bytes) -> bool:
    """Tell whether a writer's slot is there, in this process, and has nothing open."""
    if words.size == 0 or old.size < STRIPE_NBYTES:
        return False
    is_free: bool = words[_STATE] & _STATE_MASK == _FREE
    return is_free


@njit
def commit_one(  # noqa: PLR0913, PLR0917 - it is inlined
    header: Words,
    row: Words,
    words: Words,
    fd: int,
    stripe: int,
    first: int,
    limit: int,
    operand: Operand,
    data: int,
    ahead: int,
    old: int,
    note: Note,
) -> bool:
    """Commit one stripe; False, and nothing done, where something is in the way."""
    lock_byte = int64(header[_ADDRESS] & _OFFSET_MASK) + stripe * STRIPE_NBYTES
    if try_lock(fd, lock_byte) != 0:
        return False
    barrier()
    if row[_SEQ] & _ONE != _ZERO or header[_REGION_STATE] == _FREED:
        unlock(fd, lock_byte)
        return False
    _open(header, row, words, stripe, first, limit, note)
    change_blocks(operand, data + first, ahead, limit - first, old, words, _PROGRESS)
    _close(row, words, note)
    unlock(fd, lock_byte)
    return True


@njit
def _commit_all(  # noqa: PLR0913, PLR0917 - it is inlined
    header: Words,
    table: Words,
    words: Words,
    fd: int,
    first: int,
    limit: int,
    operand: Operand,
    data: int,
    old: int,
    note: Note,
) -> int:
    """Commit stripes while nothing is in the way; returns the byte reached."""
    at = first
    while at < limit:
        stripe = at // STRIPE_NBYTES
        end = min(limit, (stripe + 1) * STRIPE_NBYTES)
        room, row, ahead = _room(note, old), table[stripe], at - first
        if not commit_one(
            header, row, words, fd, stripe, at, end, operand, data, ahead, room, note
        ):
            break
        at = end
        if note.mark != 0:
            note = Note(note.channel, note.mark, note.number + 1, note.ring)
    return at


@njit(
    int64(
        WORDS, TABLE, BYTES, WORDS, BYTES, int64, int64, int64,
        int64, int64, float64, int64, SOURCE, BYTES, int64,
        WORDS, int64, int64, WORDS,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def commit_stripes(  # noqa: PLR0913, PLR0917 - bundles are slow to pass from Python
    header: Words,
    table: Words,
    data: Bytes,
    words: Words,
    old: Bytes,
    fd: int,
    first: int,
    limit: int,
    mode: int,
    kernel: int,
    scale: float,
    whole: int,
    source: Bytes,
    back: Bytes,
    how: int,
    channel: Words,
    mark: int,
    number: int,
    ring: Words,
) -> int:
    """Commit stripe after stripe; returns the byte reached, as ``stripe_run.commit_run``.

    Args:
        header: the region's header words; none once it is closed.
        table: ``u64[stripes, 8]``.
        data: its bytes; none once it is closed.
        words: the writer's slot words; empty, as the next, in a forked child.
        old: the writer's room for old bytes.
        fd: the writer's open lock file.
        first: first byte of the region's data to change.
        limit: byte behind the last.
        mode: a value of ``Mode``; with its scale as ``scale`` or as ``whole``.
        kernel: the ``KernelCode``, for the journal.
        scale: see ``mode``.
        whole: see ``mode``.
        source: bytes of the operand, ``limit - first`` of them.
        back: the caller's bytes, ``limit - first`` of them where ``how`` is not NONE.
        how: a value of ``Back``.
        channel: with the next three a ``Note``, of the first stripe.
        mark: its.
        number: its.
        ring: its.
    """
    if header.size == 0 or limit > data.size or source.size != limit - first:
        return first
    if not is_ready(words, old):
        return first
    operand = Operand(mode, address_of(source), scale, whole, how, address_of(back))
    to, room = address_of(data), address_of(old)
    at: int = first
    if header[_CONSISTENCY] == _BY_STRIPE:
        words[_KERNEL] = kernel
        note = Note(channel, mark, number, ring)
        at = _commit_all(header, table, words, fd, first, limit, operand, to, room, note)
    elif header[_CONSISTENCY] == _NO_LOCKS and channel.size == 0:
        at = change_all(header, table, words, first, limit, operand, to, room)
    return at
