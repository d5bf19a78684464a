"""Reads of many stripes in one compiled call without the GIL.

Imported only through accel.py. This is reading.py for the case that nothing is in the way, and
it stops before the first stripe where something is: a writer that stays, a freed region.

Between two loads whose order matters stands a compiler barrier; x86 keeps the order from there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import int64, njit
from numpy.typing import NDArray

from smbox.memory.compiled import BYTES, WORDS
from smbox.memory.compiled_ops import address_of, barrier, pause
from smbox.memory.compiled_runs import TABLE
from smbox.memory.compiled_stream import copy_share
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionHeader, RegionState, Stripe

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

TORN_TRIES: Final = 3
SPINS: Final = 400
"""Looks at a stripe that is being written before a read gives up: some 20 to 60 us."""

# Words are unsigned: uint64 with a signed number would become a float.
_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)
_REGION_STATE: Final = RegionHeader.STATE
_CONSISTENCY: Final = RegionHeader.CONSISTENCY
_FREED: Final = np.uint64(RegionState.FREED)
_BY_STRIPE: Final = np.uint64(Consistency.STRIPE)
_NO_LOCKS: Final = np.uint64(Consistency.NONE)
_SEQ: Final = Stripe.SEQ


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
    """Copy stripe after stripe of ``first..limit``; see ``read_run.read_run``.

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
        barrier()
        # Before: pages that are given back cannot be read where /dev/shm is full (SIGBUS).
        if header[_REGION_STATE] == _FREED:
            break
        if header[_CONSISTENCY] == _NO_LOCKS:
            copy_share(target + at - first, begin + at, end - at, limit - first)
        elif header[_CONSISTENCY] != _BY_STRIPE or not _read_stripe(
            table[stripe], begin + at, target + at - first, end - at, limit - first
        ):
            break
        barrier()
        if header[_REGION_STATE] == _FREED:  # and after: they may have gone meanwhile
            break
        at = end
    return at
