"""Stripe-atomic reads: no reader ever sees half of a commit.

A copy is good if the stripe's seq was even before and is the same after: x86 keeps loads in
order and stores in order. Elsewhere, and after three torn tries, the reader takes the lock.
"""

from __future__ import annotations

import platform
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory import accel, recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import Consistency, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion, Piece, pieces

ORDERS_LOADS: Final = platform.machine() in {"x86_64", "AMD64"}
TORN_TRIES: Final = 3


def read_piece(
    region: MappedRegion, piece: Piece, out: NDArray[np.uint8], locks: LockFile
) -> None:
    """Copy one piece of a region as it was between two commits.

    Args:
        region: the region.
        piece: the bytes wanted.
        out: ``u8[limit - first]``; holds anything after an error.
        locks: the caller's own open of the lock file.

    Raises:
        StripeBusy: a writer is in the middle of a commit; try again.
        RegionFreedError: the region was freed.
    """
    region.check_usable()  # pages given back cannot be read where /dev/shm is full: SIGBUS
    if not _read_unlocked(region, piece, out):
        _read_locked(region, piece, out, locks)
    region.check_usable()


def read_range(
    region: MappedRegion, first: int, limit: int, out: NDArray[np.uint8], locks: LockFile
) -> None:
    """Copy bytes ``first..limit`` of a region, each stripe as between two commits.

    Never loads compiled code, but uses it where it is there.

    Args:
        region: the region.
        first: first byte of its data that is wanted.
        limit: byte behind the last.
        out: ``u8[limit - first]``; holds anything after an error.
        locks: the caller's own open of the lock file.

    Raises:
        StripeBusy: a writer is in the middle of a commit; try all of it again.
        RegionFreedError: the region was freed.
    """
    engine, at = accel.loaded(), first
    if engine is not None and engine.read_stripes is not None and out.flags.c_contiguous:
        at = engine.read_stripes(region.header, region.table, region.data, first, limit, out)
    for piece in pieces(at, limit):
        read_piece(region, piece, out[piece.first - first : piece.limit - first], locks)


def _read_unlocked(region: MappedRegion, piece: Piece, out: NDArray[np.uint8]) -> bool:
    data = region.data[piece.first : piece.limit]
    if region.spec.consistency == Consistency.NONE:
        np.copyto(out, data)
        return True
    stripe = region.table[piece.stripe]
    for _ in range(TORN_TRIES if ORDERS_LOADS else 0):
        before = int(stripe[Stripe.SEQ])
        if before & 1:
            return False
        np.copyto(out, data)
        if int(stripe[Stripe.SEQ]) == before:
            return True
    return False


def _read_locked(
    region: MappedRegion, piece: Piece, out: NDArray[np.uint8], locks: LockFile
) -> None:
    byte = region.lock_byte(piece.stripe)
    try:
        if not locks.try_lock(byte):
            raise StripeBusy(region, piece.stripe)
        if region.table[piece.stripe, Stripe.SEQ] & 1:
            recovery.recover_stripe(region, piece.stripe, locks)
        np.copyto(out, region.data[piece.first : piece.limit])
    finally:
        locks.unlock(byte)
