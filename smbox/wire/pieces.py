"""How a range of a region becomes requests, and how many numbers each one takes. Pure.

All ranges are bytes of one region's data, ``[first, limit)``; stripes and requests are cut at
multiples of their size from the region's first byte, not from address 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from smbox.wire.header import LONG_NBYTES_MAX, REQUEST_NBYTES_MAX, STAMPED_NBYTES_MAX
from smbox.wire.ops import SOURCES, Op

_UNITS: Final = {
    **dict.fromkeys(SOURCES, LONG_NBYTES_MAX),
    Op.LEND: LONG_NBYTES_MAX,
    Op.STAMPS: STAMPED_NBYTES_MAX,
}


def unit_of(op: Op) -> int:
    """Return how many bytes a request of ``op`` covers at most, and where it is cut."""
    return _UNITS.get(op, REQUEST_NBYTES_MAX)


def end_of(first: int, limit: int, unit: int) -> int:
    """Return where the piece that begins at ``first`` ends."""
    return min(limit, (first // unit + 1) * unit)


def cut(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> Iterator[tuple[int, int]]:
    """Cut a range at the multiples of ``unit``, ascending; an empty range gives nothing."""
    while first < limit:
        end = end_of(first, limit, unit)
        yield first, end
        first = end


def count(first: int, limit: int, unit: int = REQUEST_NBYTES_MAX) -> int:
    """Count the pieces of ``cut``: the numbers of a change, or the requests of a transfer."""
    if first >= limit:
        return 0
    return (limit - 1) // unit - first // unit + 1
