"""The fast way to read: many stripes, each as it was between two commits, in one call."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from smbox.memory import accel
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import flat


def read_run(region: MappedRegion, first: int, limit: int, out: NDArray[Any]) -> int:
    """Copy bytes ``first..limit`` of a region, up to the first obstacle.

    Each stripe is copied between two looks at its ``seq``; a stripe that is being written is
    waited for some microseconds. Holds no GIL meanwhile. ``reading.read_piece`` goes on
    where this stops: at a stripe that writers keep busy, or in a freed region.

    Args:
        region: a region of consistency "stripe" or "none"; others are left alone.
        first: first byte of the region's data that is wanted.
        limit: byte behind the last.
        out: ``limit - first`` bytes, C-contiguous; what lies behind the returned byte holds
            anything.

    Returns:
        The byte up to which ``out`` is filled.

    Raises:
        ConfigError: ``out`` is not C-contiguous.
    """
    engine = accel.prepare(limit - first)
    if engine is None or engine.read_stripes is None or first < 0:
        return first
    return engine.read_stripes(
        region.header, region.table, region.data, first, limit, flat(out)
    )
