"""The regions that a client maps, shared by its threads."""

from __future__ import annotations

import threading
from typing import Final

from smbox.address import OFFSET_MAX
from smbox.errors import PeerLostError, RegionFreedError
from smbox.memory.layout import RegionHeader, RegionState
from smbox.memory.mapped import MappedRegion
from smbox.paths.proof import check_not_another, check_still_shared
from smbox.paths.work import NodeInfo, RegionInfo

_STATE: Final = RegionHeader.STATE


class Mappings:
    """Mapped regions by address; each is mapped when it is first asked for.

    Attributes:
        node: whose memory it is.
        mapped: returns the region at an address if it is mapped, freed or not; else None.
    """

    def __init__(self, node: NodeInfo) -> None:
        self.node = node
        self._regions: dict[int, MappedRegion] = {}
        self.mapped = self._regions.get
        self._mutex = threading.RLock()
        self._is_closed = False

    def region(self, info: RegionInfo) -> MappedRegion:
        """Return a region's mapping.

        Raises:
            RegionFreedError: the region was freed.
            PeerLostError: the memory is no longer that of the node, or all was let go.
            SegmentError: it cannot be mapped just now.
        """
        region = self._regions.get(info.address)
        if region is None or region.header.item(_STATE) == RegionState.FREED:
            return self._attach(info)
        return region

    def _attach(self, info: RegionInfo) -> MappedRegion:
        """Map a region, and let go of those that were freed: their memory goes then."""
        with self._mutex:
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            for address, region in list(self._regions.items()):
                if region.state == RegionState.FREED:
                    del self._regions[address]
            try:
                region = MappedRegion.attach(self.node.name, info.address & OFFSET_MAX)
            except RegionFreedError:
                check_not_another(self.node)
                raise
            check_still_shared(self.node)
            return self._regions.setdefault(info.address, region)

    def close(self) -> None:
        """Let go of all, for good; whoever still uses one keeps it alive."""
        with self._mutex:
            self._is_closed = True
            self._regions.clear()

    def abandon(self) -> None:
        """Let go of all in a forked child, where another thread may hold the mutex for ever."""
        self._mutex = threading.RLock()
        self.close()

    def __len__(self) -> int:
        return len(self._regions)
