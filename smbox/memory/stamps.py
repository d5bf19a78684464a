"""Stamps: by which a reader far away knows that bytes are whole which were sent uncopied.

A sequence lock whose reader is at the other end of the wire (Boehm, "Can seqlocks get along
with programming language memory models?", MSPC 2012): the stamp of a range is taken before its
bytes are sent and once more when they have arrived. If it is the same, no commit began, went on
or ended in between. Sequence numbers only grow, so their sum is the same when each of them is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.mapped import MappedRegion

CHANGING: Final = 0
"""The stamp of what is being changed just now: equal to no other, and not to itself."""


def joined(stamps: Iterable[int]) -> int:
    """Return the stamp of a range from those of the parts that it was cut into."""
    total = 1
    for stamp in stamps:
        if stamp == CHANGING:
            return CHANGING
        total += stamp - 1
    return total


def stamp_of(region: MappedRegion, first: int, limit: int) -> int:
    """Return the stamp of bytes ``[first, limit)`` of a region's data, not empty.

    Returns:
        At least 1, or CHANGING.
    """
    stripes = slice(first // STRIPE_NBYTES, (limit - 1) // STRIPE_NBYTES + 1)
    words = region.table[stripes, Stripe.SEQUENCE].tolist()
    if any(word & Stripe.OPEN for word in words):
        return CHANGING
    return 1 + int(sum(words))
