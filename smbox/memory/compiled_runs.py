"""Commits and reads of many free stripes, each in one compiled call without the GIL.

Imported only through accel.py. This is commit.py and reading.py for the case that nothing is
in the way; word for word the same procedure, so change them together. At the first stripe
where something is (a lock held, a commit left open, a freed region) both stop before it.

Between two stores whose order matters to a reader, or to recovery, stands a compiler barrier;
x86 keeps the order from there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import float64, int64, njit, types
from numpy.typing import NDArray

from smbox.memory.compiled import BYTES, SOURCE, WORDS, Operand, change_blocks, give_back
from smbox.memory.compiled_ops import address_of, barrier, pause, try_lock, unlock
from smbox.memory.compiled_stream import copy_share
from smbox.memory.compiled_unlocked import change_all
from smbox.memory.layout import (
    OFFSET_BITS,
    STRIPE_NBYTES,
    Consistency,
    RegionHeader,
    RegionState,
    Slot,
    SlotState,
    Stripe,
)
from smbox.memory.modes import Back

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
TABLE: Final = types.Array(types.uint64, 2, "C")

TORN_TRIES: Final = 3
SPINS: Final = 400
"""Looks at a stripe that is being written before a read gives up: some 20 to 60 us."""

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
_NONE: Final = int(Back.NONE)


@njit
def _open(header: Words, row: Words, words: Words, stripe: int, first: int, limit: int) -> None:
    """Arm the slot and open the stripe."""
    words[_SLOT_REGION] = header[_ADDRESS]
    words[_SLOT_STRIPE] = stripe
    words[_SLOT_FIRST] = first
    words[_SLOT_LIMIT] = limit
    words[_PROGRESS] = _ZERO
    words[_SLOT_COUNT] = row[_COUNT]
    words[_ROW] = _ZERO
    words[_NUMBER] = _ZERO
    words[_RING_ENTRY] = _ZERO
    barrier()
    words[_STATE] += _TO_ARMED
    barrier()
    row[_WRITER] = words[_ID]
    barrier()
    row[_SEQ] += _ONE
    barrier()


@njit
def _close(row: Words, words: Words) -> None:
    """Commit, and write the last words."""
    barrier()
    words[_STATE] += _TO_COMMITTED
    barrier()
    row[_COUNT] += _ONE
    barrier()
    row[_SEQ] += _ONE
    barrier()
    words[_STATE] -= _FROM_COMMITTED
    barrier()


@njit
def _commit_stripe(  # noqa: PLR0913, PLR0917 - it is inlined
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
) -> bool:
    """Commit one stripe; False, and nothing done, where something is in the way."""
    lock_byte = int64(header[_ADDRESS] & _OFFSET_MASK) + stripe * STRIPE_NBYTES
    if try_lock(fd, lock_byte) != 0:
        return False
    barrier()
    if row[_SEQ] & _ONE != _ZERO or header[_REGION_STATE] == _FREED:
        unlock(fd, lock_byte)
        return False
    _open(header, row, words, stripe, first, limit)
    change_blocks(operand, data + first, ahead, limit - first, old, words, _PROGRESS)
    _close(row, words)
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
    back: int,
    how: int,
) -> int:
    """Commit stripes while nothing is in the way; returns the byte reached."""
    at = first
    while at < limit:
        stripe = at // STRIPE_NBYTES
        end = min(limit, (stripe + 1) * STRIPE_NBYTES)
        if not _commit_stripe(
            header, table[stripe], words, fd, stripe, at, end, operand, data, at - first, old
        ):
            break
        if how != _NONE:
            give_back(how, back + at - first, operand, at - first, end - at, old)
        at = end
    return at


@njit(
    int64(
        WORDS, TABLE, BYTES, WORDS, BYTES, int64, int64, int64,
        int64, int64, float64, int64, SOURCE, BYTES, int64,
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
) -> int:
    """Commit stripe after stripe of ``first..limit``; see ``stripe_run.commit_run``.

    Args:
        header: the region's header words; empty, as the next two, once it is closed.
        table: ``u64[stripes, 8]``.
        data: the region's bytes.
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

    Returns:
        The byte up to which everything is committed.
    """
    size = limit - first
    if header.size == 0 or table.size == 0 or limit > data.size or source.size != size:
        return first
    if words.size == 0 or old.size < STRIPE_NBYTES:
        return first
    operand = Operand(mode, address_of(source), scale, whole)
    begin, journal, answer = address_of(data), address_of(old), address_of(back)
    if words[_STATE] & _STATE_MASK != _FREE:
        return first
    reached: int = first
    if header[_CONSISTENCY] == _BY_STRIPE:
        words[_KERNEL] = kernel
        reached = _commit_all(
            header, table, words, fd, first, limit, operand, begin, journal, answer, how
        )
    elif header[_CONSISTENCY] == _NO_LOCKS:
        reached = change_all(
            header, table, words, first, limit, operand, begin, journal, answer, how
        )
    return reached


@njit
def _read_stripe(row: Words, data: int, out: int, nbytes: int, total: int) -> bool:
    """Copy a stripe as it was between two commits; False if writers never let it be."""
    spins = 0
    for _ in range(TORN_TRIES):
        barrier()
        before = row[_SEQ]
        while before & _ONE != _ZERO:
            if spins == SPINS:
                return False
            spins += 1
            pause()
            barrier()
            before = row[_SEQ]
        barrier()
        copy_share(out, data, nbytes, total)
        barrier()
        if row[_SEQ] == before:
            return True
    return False


@njit(int64(WORDS, TABLE, BYTES, int64, int64, BYTES), nogil=True, cache=True)
def read_stripes(
    header: Words, table: Words, data: Bytes, first: int, limit: int, out: Bytes
) -> int:
    """Copy stripe after stripe of ``first..limit``; see ``compiled_read.read_run``.

    Args:
        header: the region's header words; empty, as the next two, once it is closed.
        table: ``u64[stripes, 8]``.
        data: the region's bytes.
        first: first byte of the region's data that is wanted.
        limit: byte behind the last.
        out: ``limit - first`` bytes.

    Returns:
        The byte up to which ``out`` is filled.
    """
    if header.size == 0 or table.size == 0 or limit > data.size or out.size != limit - first:
        return first
    begin, target = address_of(data), address_of(out)
    at = first
    while at < limit:
        stripe = at // STRIPE_NBYTES
        end = min(limit, (stripe + 1) * STRIPE_NBYTES)
        if header[_CONSISTENCY] == _NO_LOCKS:
            copy_share(target + at - first, begin + at, end - at, limit - first)
        elif header[_CONSISTENCY] != _BY_STRIPE or not _read_stripe(
            table[stripe], begin + at, target + at - first, end - at, limit - first
        ):
            break
        barrier()
        if header[_REGION_STATE] == _FREED:  # its pages may have gone while they were copied
            break
        at = end
    return at
