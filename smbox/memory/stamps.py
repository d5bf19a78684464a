"""Stamps: by which a reader far away knows that bytes are whole which were sent uncopied.

A sequence lock whose reader is at the other end of the wire (Boehm, "Can seqlocks get along
with programming language memory models?", MSPC 2012): the stamp of a range is taken before its
bytes are sent and once more when they have arrived. If it is the same, no commit began, went on
or ended in between. It is a digest of the sequence words: a sum could stay the same when one
word falls, as the count of undone commits does when it wraps.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np

from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.mapped import MappedRegion

CHANGING: Final = 0
"""The stamp of what is being changed just now: equal to no other, and not to itself."""


def stamp_of(region: MappedRegion, first: int, limit: int) -> int:
    """Return the stamp of bytes ``[first, limit)`` of a region's data, not empty.

    Returns:
        A digest of 64 bits, not 0; or CHANGING.
    """
    stripes = slice(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
    words = region.table[stripes, Stripe.SEQUENCE].copy()
    if np.any(words & np.uint64(Stripe.OPEN)):
        return CHANGING
    digest = blake2b(words.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
