"""Commits of many small changes of one region, each by itself, in one compiled call.

Imported only through accel.py. An item is committed as a stripe of compiled_runs.py is, under
a number of its own; the first one where something is in the way ends the call.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from smbox.memory.compiled import BYTES, SOURCE, WORDS, Operand
from smbox.memory.compiled_ops import address_of
from smbox.memory.compiled_runs import TABLE, Note, commit_one, is_ready
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionHeader, Slot
from smbox.memory.modes import SCALE_SAFE, Back, Mode

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Scales = NDArray[np.float64]
ORDERS: Final = types.Array(types.uint64, 2, "C")
SCALES: Final = types.Array(types.float64, 2, "C")

# Compiled code takes numbers from globals, not from classes. Words are unsigned: uint64 with
# a signed number would become a float.
_CONSISTENCY: Final = RegionHeader.CONSISTENCY
_ADDRESS: Final = RegionHeader.ADDRESS
_BY_STRIPE: Final = np.uint64(Consistency.STRIPE)
_KERNEL: Final = Slot.KERNEL
_NONE: Final = int(Back.NONE)
_KIND_MASK: Final = np.uint64(0xFFFF)
_SOURCE_SHIFT: Final = np.uint64(32)
_LONGEST: Final = np.uint64(STRIPE_NBYTES)
_ZERO: Final = np.uint64(0)
_WHOLE: Final = int(Mode.SUM_INT64)
_REPLACE: Final = int(Mode.REPLACE)
_SAFE: Final = SCALE_SAFE


@njit
def _nbytes(
    orders: Words, scales: Scales, at: int, base: int, size: int, itemsize: int, mode: int
) -> int:
    """Return the bytes of an order that may be committed as the first one is, or 0."""
    kind, nbytes, offset = orders[at, 0], orders[at, 2], orders[at, 1] - base
    if (kind ^ orders[0, 0]) & _KIND_MASK != _ZERO or kind >> _SOURCE_SHIFT != nbytes:
        return 0
    if offset >= size or nbytes == _ZERO or nbytes > _LONGEST:
        return 0
    first = int64(offset)
    count: int = int64(nbytes)
    limit = first + count
    if limit > int64(size) or (first | limit) % itemsize != 0:
        return 0
    if first // STRIPE_NBYTES != (limit - 1) // STRIPE_NBYTES:
        return 0
    if mode not in (_WHOLE, _REPLACE) and not abs(scales[at, 3]) < _SAFE:
        return 0
    return count


@njit
def _alike(
    orders: Words, scales: Scales, base: int, size: int, itemsize: int, mode: int, left: int
) -> tuple[int, int]:
    """Count the first orders that are alike, and what of ``left`` source bytes they leave."""
    count = 0
    while count < orders.shape[0]:
        nbytes = _nbytes(orders, scales, count, base, size, itemsize, mode)
        if nbytes == 0 or nbytes > left:
            break
        count, left = count + 1, left - nbytes
    return count, left


@njit(
    int64(
        WORDS, TABLE, BYTES, WORDS, BYTES, int64, int64, int64, int64,
        ORDERS, SCALES, int64, SOURCE, int64, WORDS, int64, int64,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def commit_items(  # noqa: PLR0913, PLR0917 - bundles are slow to pass from Python
    header: Words,
    table: Words,
    data: Bytes,
    words: Words,
    old: Bytes,
    fd: int,
    mode: int,
    kernel: int,
    itemsize: int,
    orders: Words,
    scales: Scales,
    source_at: int,
    source: Bytes,
    needs_all: int,
    channel: Words,
    mark: int,
    number: int,
) -> int:
    """Commit item after item; returns how many, as ``item_run.commit_items``.

    Args:
        header: the region's header words; none once it is closed.
        table: ``u64[stripes, 8]``.
        data: its bytes; none once it is closed.
        words: the writer's slot words; empty, as the next, in a forked child.
        old: the writer's room for old bytes.
        fd: the writer's open lock file.
        mode: a value of ``Mode``, of all items: REPLACE or a SUM.
        kernel: the ``KernelCode``, for the journal.
        itemsize: of the region's elements.
        orders: ``u64[items, 4]``; see ``item_run.commit_items``.
        scales: the same memory as ``f64[items, 4]``.
        source_at: where in ``source`` the first operand begins.
        source: bytes of all operands.
        needs_all: 1: nothing is done unless all items are alike and use up the source.
        channel: with the next two a ``compiled_runs.Note``, of the first item.
        mark: its.
        number: its.
    """
    if header.size == 0 or header[_CONSISTENCY] != _BY_STRIPE or not is_ready(words, old):
        return 0
    base, size = header[_ADDRESS], np.uint64(data.size)
    found, left = _alike(orders, scales, base, size, itemsize, mode, source.size - source_at)
    count: int = found
    if needs_all != 0 and (count < orders.shape[0] or left != 0):
        return 0
    words[_KERNEL], no_ring = kernel, words[:0]  # none of them answers
    operand_at, to, room = address_of(source) + source_at, address_of(data), address_of(old)
    for at in range(count):
        first, nbytes = int64(orders[at, 1] - base), int64(orders[at, 2])
        operand = Operand(mode, operand_at, scales[at, 3], int64(orders[at, 3]), _NONE, 0)
        note = Note(channel, mark, number + at, no_ring)
        stripe, limit = first // STRIPE_NBYTES, first + nbytes
        if not commit_one(
            header, table[stripe], words, fd, stripe, first, limit, operand, to, 0, room, note
        ):
            return at
        operand_at += nbytes
    return count
