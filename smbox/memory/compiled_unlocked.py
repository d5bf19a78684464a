"""Changes of a lock-free region, compiled: no lock and no journal.

Imported only through accel.py, by compiled_runs.py. This is unlocked.py for many stripes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smbox.memory.compiled import (
    Operand,
    change_block,
    exchange_block,
    give_back,
    is_exchange,
)
from smbox.memory.compiled_ops import barrier, copy_bytes
from smbox.memory.compiled_stream import copy_share
from smbox.memory.layout import (
    STRIPE_NBYTES,
    RegionHeader,
    RegionState,
    Slot,
    SlotState,
    Stripe,
)
from smbox.memory.modes import Back, Mode

BLOCK_NBYTES: Final = 4096
"""Bytes changed at a time; measured, and smaller than with a journal."""

Words = NDArray[np.uint64]

_ONE: Final = np.uint64(1)
_REGION_STATE: Final = RegionHeader.STATE
_FREED: Final = np.uint64(RegionState.FREED)
_COUNT: Final = Stripe.COUNT
_STATE: Final = Slot.STATE
_ONE_COMMIT: Final = np.uint64(1 << SlotState.BITS)
_REPLACE: Final = int(Mode.REPLACE)
_NONE: Final = int(Back.NONE)


@njit
def _change_stripe(
    operand: Operand, data: int, at: int, nbytes: int, total: int, old: int
) -> None:
    """Change a stripe's bytes; what the caller wants back is made from a block's old bytes."""
    if operand.how == _NONE and operand.mode == _REPLACE:
        copy_share(data, operand.source + at, nbytes, total)
        return
    if is_exchange(operand):
        exchange_block(operand, data, at, nbytes)
        return
    done = 0
    while done < nbytes:
        count = min(BLOCK_NBYTES, nbytes - done)
        if operand.how != _NONE:
            copy_bytes(old, data + done, count)
        change_block(operand, data + done, at + done, count)
        give_back(operand, at + done, count, old)
        done += count


@njit
def change_all(
    header: Words,
    table: Words,
    words: Words,
    first: int,
    limit: int,
    operand: Operand,
    data: int,
    old: int,
) -> int:
    """Change stripes while the region is not freed; returns the byte reached.

    The arguments are those of ``compiled_runs.commit_stripes``. The writer's slot counts a
    commit for each stripe, so that an interrupted caller knows how far this came.
    """
    at = first
    while at < limit:
        stripe = at // STRIPE_NBYTES
        end = min(limit, (stripe + 1) * STRIPE_NBYTES)
        barrier()
        if header[_REGION_STATE] == _FREED:
            break
        ahead = at - first
        _change_stripe(operand, data + at, ahead, end - at, limit - first, old)
        barrier()
        table[stripe, _COUNT] += _ONE
        words[_STATE] += _ONE_COMMIT
        barrier()
        at = end
    return at
