"""The regions that a client maps, shared by its threads; and whether it may map any.

The proof that this process shares a node's memory is the memory itself, found under its name:
sharing a host proves nothing (containers). The superblock in this /dev/shm must carry the uuid
that the node told us, and we must be allowed to open its locks.
"""

from __future__ import annotations

import threading
from typing import Final

from smbox.address import OFFSET_MAX
from smbox.errors import PeerLostError, RegionFreedError, SegmentError
from smbox.memory import layout
from smbox.memory.layout import RegionHeader, RegionState, Superblock
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import NoSegmentError, Segment
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


def why_not_shared(node: NodeInfo) -> str | None:
    """Tell why this process cannot map the node's memory; None if it can."""
    try:
        uuid, found_format = _found(node.name)
        LockFile(node.name).close()
    except SegmentError as error:
        return f"the node's memory is not in this /dev/shm ({error.message})"
    if uuid != node.uuid:
        return "another node of the same name keeps its memory in this /dev/shm"
    if found_format != layout.FORMAT:
        known = f"this client knows {layout.FORMAT:#x}"
        return f"the node's memory has format {found_format:#x}, {known}"
    return None


def check_not_another(node: NodeInfo) -> None:
    """Raise PeerLostError if another memory has the node's name; not if there is none."""
    try:
        uuid, _ = _found(node.name)
    except NoSegmentError:  # stopped, and nobody has begun anew
        return
    except SegmentError:
        uuid = b""
    if uuid != node.uuid:
        check_still_shared(node)


def _found(node: str) -> tuple[bytes, int]:
    """Return uuid and format of the memory of this name."""
    with Segment.attach(layout.node_name(node)) as segment:
        words = segment.words(0, Superblock.MEMORY_NBYTES + 1)
        uuid = words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1].tobytes()
        return uuid, int(words[Superblock.FORMAT])


def check_still_shared(node: NodeInfo) -> None:
    """Raise PeerLostError if the node's name has come to mean another memory."""
    why_not = why_not_shared(node)
    if why_not is not None:
        raise PeerLostError(f"connect again: {why_not}", node=node.name, outcome="none")
