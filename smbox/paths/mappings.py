"""Mappings: the regions that a process maps; and the check that it shares a node's memory.

Sharing a host is not enough (containers): the process must find the memory itself. The
superblock in its /dev/shm must have the uuid that the node sent, and the process must have the
permission to open the node's lock file.
"""

from __future__ import annotations

import threading
from typing import Final

from smbox.address import OFFSET_MAX
from smbox.errors import PeerLostError, RegionFreedError, SegmentError
from smbox.memory import layout
from smbox.memory.layout import RegionState, Superblock
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import Segment, size as segment_size
from smbox.paths.requests import NodeInfo, RegionInfo

LOOKS: Final = 256
"""Mappings that are looked at, on average, for each new one, whether their region was freed."""


class Mappings:
    """The mapped regions by address; a region is mapped at its first use.

    Attributes:
        node: the owner of the memory.
        mapped: returns the mapped region at an address, freed or not; None if it is not mapped.
    """

    def __init__(self, node: NodeInfo) -> None:
        self.node = node
        self._regions: dict[int, MappedRegion] = {}
        self.mapped = self._regions.get
        self._mutex = threading.RLock()
        self._is_closed = False
        self._attached = 0  # since the last look at all mappings

    def region(self, info: RegionInfo) -> MappedRegion:
        """Return the mapping of a region.

        Raises:
            RegionFreedError: the region was freed.
            PeerLostError: another memory has the node's name, or the path was closed.
            SegmentError: the region cannot be mapped at present.
        """
        region = self._regions.get(info.address)
        if region is None or region.state == RegionState.FREED:
            return self._attach(info)
        return region

    def _attach(self, info: RegionInfo) -> MappedRegion:
        """Map a region, and drop the mappings of freed regions, which releases their memory."""
        with self._mutex:
            if self._is_closed:
                raise PeerLostError("the box was closed", outcome="none")
            self._attached += 1
            mapped = self._regions.items()
            # To look at all each time, the first uses of n regions would take n**2 / 2 looks.
            if self._attached * LOOKS >= len(mapped):
                self._attached = 0
                for address in [a for a, r in mapped if r.state == RegionState.FREED]:
                    del self._regions[address]
            try:
                region = MappedRegion.attach(self.node.name, info.address & OFFSET_MAX)
            except RegionFreedError as error:
                self._regions.pop(info.address, None)
                # Without a superblock, the node has stopped.
                if segment_size(layout.name_of(self.node.name, "node")):
                    check_still_shared(self.node)
                error.facts["name"] = info.name
                raise
            check_still_shared(self.node)
            return self._regions.setdefault(info.address, region)

    def close(self) -> None:
        """Drop all mappings for good; a region in use stays mapped until its last user ends."""
        with self._mutex:
            self._is_closed = True
            self._regions.clear()


def why_not_shared(node: NodeInfo) -> str | None:
    """Return why this process cannot map the node's memory; None if it can.

    Raises:
        SystemLimitError: a limit of the system keeps it from finding that out.
    """
    try:
        segment = Segment.attach(layout.name_of(node.name, "node"))
        words = segment.words(0, Superblock.MEMORY_NBYTES + 1)
        LockFile(node.name).close()
    except SegmentError as error:
        return f"the node's memory is not in this /dev/shm ({error.message})"
    found_format = int(words[Superblock.FORMAT])
    if found_format != layout.FORMAT:  # the uuid may be elsewhere in another format
        known = f"this client knows {layout.FORMAT:#x}"
        return f"the node's memory has format {found_format:#x}, {known}"
    if words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1].tobytes() != node.uuid:
        return "another node of the same name keeps its memory in this /dev/shm"
    return None


def check_still_shared(node: NodeInfo) -> None:
    """Raise PeerLostError if this process cannot map the node's memory.

    Raises:
        SystemLimitError: as ``why_not_shared``.
    """
    why_not = why_not_shared(node)
    if why_not is not None:
        raise PeerLostError(f"connect again: {why_not}", node_name=node.name, outcome="none")
