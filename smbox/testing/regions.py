"""Regions made at once in a test's own memory, where a node makes them slice by slice."""

from __future__ import annotations

from smbox.memory.building import Building
from smbox.memory.layout import RegionState
from smbox.memory.mapped import MappedRegion
from smbox.memory.region_header import RegionSpec


def build(
    node: str,
    spec: RegionSpec,
    address: int,
    init: float | None = None,
    state: int = RegionState.LIVE,
) -> MappedRegion:
    """Make a region at once.

    Raises:
        OutOfMemoryError: no room; nothing is left.
    """
    building = Building(node, spec, address, init)
    try:
        while not building.step():
            pass
        return building.finish(state)
    except BaseException:
        building.abandon()
        raise
