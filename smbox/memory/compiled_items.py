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

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
PLACES: Final = types.Array(types.int64, 2, "C")
SCALES: Final = types.Array(types.float64, 1, "C")

# Compiled code takes numbers from globals, not from classes.
_CONSISTENCY: Final = RegionHeader.CONSISTENCY
_BY_STRIPE: Final = np.uint64(Consistency.STRIPE)
_KERNEL: Final = Slot.KERNEL


@njit(
    int64(
        WORDS, TABLE, BYTES, WORDS, BYTES, int64, int64, int64,
        PLACES, SCALES, SOURCE, WORDS, int64, int64,
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
    places: NDArray[np.int64],
    scales: NDArray[np.float64],
    source: Bytes,
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
        mode: a value of ``Mode``, of all items.
        kernel: the ``KernelCode``, for the journal.
        places: ``i64[items, 4]``: first byte in the region, byte behind the last, first byte
            in the source, the scale of whole numbers.
        scales: ``f64[items]``: the scale of other numbers.
        source: bytes of all operands.
        channel: with the next two a ``compiled_runs.Note``, of the first item.
        mark: its.
        number: its.
    """
    if header.size == 0 or header[_CONSISTENCY] != _BY_STRIPE or not is_ready(words, old):
        return 0
    words[_KERNEL] = kernel
    no_ring = words[:0]  # none of them answers
    begin, to, room = address_of(source), address_of(data), address_of(old)
    count: int = places.shape[0]
    for at in range(count):
        first, limit, ahead = places[at, 0], places[at, 1], places[at, 2]
        stripe = first // STRIPE_NBYTES
        if not 0 <= first < limit <= data.size or stripe != (limit - 1) // STRIPE_NBYTES:
            return at
        if not 0 <= ahead <= source.size - (limit - first):
            return at
        operand = Operand(mode, begin + ahead, scales[at], places[at, 3])
        note = Note(channel, mark, number + at, no_ring)
        if not commit_one(
            header, table[stripe], words, fd, stripe, first, limit, operand, to, 0, room, note
        ):
            return at
    return count
