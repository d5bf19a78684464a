"""The memory of a node, as its owner opens, recovers, uses and closes it."""

from __future__ import annotations

import logging
import secrets
from typing import Final, Self

from smbox.errors import ConfigError, LimitError, OutOfMemoryError, SegmentError
from smbox.memory import journal, layout
from smbox.memory.channels import ChannelTable
from smbox.memory.commit import sweep_slot
from smbox.memory.journal import Writer
from smbox.memory.layout import RegionState
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import (
    Segment,
    attach_or_create,
    is_untrusted,
    listing,
    size,
    unlink,
)
from smbox.memory.superblock import OwnedSuperblock, unlink_all

COOKIE_NBYTES: Final = 32
REGIONS_MAX: Final = 60_000
"""The node maps each region. Linux allows a process 65,530 mappings (vm.max_map_count), and a
thread that cannot start for want of one would end the node."""

_LOG = logging.getLogger(__name__)


def used_nbytes(node: str) -> int:
    """Return the bytes of all segments of a node; files that are not to be trusted are none."""
    names = listing(layout.name_of(node))
    return sum(size(name) for name in names if not is_untrusted(name))


class NodeMemory:
    """The memory of a node that this process owns.

    Attributes:
        name: of the node.
        superblock: owner and addresses.
        writer: the node's own journal slot.
        channels: the remote channels.
        regions: the mapped regions, by global address.
        cookie: the secret that proves a shared /dev/shm.

    Args:
        name: of the node.
        superblock: of the memory.
    """

    def __init__(self, name: str, superblock: OwnedSuperblock) -> None:
        self.name = name
        self.superblock = superblock
        self.cookie = _cookie_of(name)
        self.channels = ChannelTable(name)
        self.regions: dict[int, MappedRegion] = {}
        self._damaged: set[int] = set()  # slots whose damage was logged
        for left in listing(layout.name_of(name, "building.")):
            unlink(left)
        self.sweep_slots()
        self._attach_regions()
        self.writer = Writer.create(name)
        self._claimed_nbytes = self._claims_left = 0

    @classmethod
    def open(cls, name: str, memory_nbytes: int, node_id: int = 0) -> Self:
        """Take the memory of node ``name`` or create it; recover the commits of dead writers.

        Raises:
            NodeOwnedError: a running node owns it; nothing was changed.
            SegmentError: it has another format or node id; nothing was changed.
            SystemLimitError: a segment cannot be opened at present; none is lost.
            OutOfMemoryError: no room for the node's own segments.
        """
        superblock = OwnedSuperblock.own(name, memory_nbytes, node_id)
        try:
            return cls(name, superblock)
        except BaseException:
            superblock.abandon()
            raise

    def begin(self, spec: RegionSpec, init: float | None = None) -> Building:
        """Begin to create a region at a new address.

        Raises:
            OutOfMemoryError: the node's limit is reached, or there is no room; nothing changed.
            LimitError: the region alone is larger than the node's memory, or the node has
                ``REGIONS_MAX`` regions.
        """
        if len(self.regions) >= REGIONS_MAX:
            raise LimitError("the node has its maximum of regions", limit=REGIONS_MAX)
        wanted = layout.segment_nbytes(spec.nbytes)
        limit = self.superblock.memory_nbytes
        if wanted > limit:
            raise LimitError(
                "the region is larger than the node's memory; start a node with more memory",
                name=spec.name,
                nbytes=wanted,
                memory_nbytes=limit,
            )
        self._claim(spec.name, wanted, limit)
        return Building(self.name, spec, self.superblock.take_address(spec.nbytes), init)

    def _claim(self, name: str, wanted: int, limit: int) -> None:
        """Raise OutOfMemoryError unless the node has room for ``wanted`` bytes of a region.

        Counting the bytes of thousands of segments is slow. They are counted before a request
        is rejected, and each time a quarter as many regions were created as exist.
        """
        self._claimed_nbytes += wanted
        self._claims_left -= 1
        if self._claims_left >= 0 and self._claimed_nbytes <= limit:
            return
        used = self.used_nbytes()
        if used + wanted > limit:
            raise OutOfMemoryError(
                "the node's memory is used up; free regions, or start a node with more memory",
                name=name,
                nbytes=wanted,
                used_nbytes=used,
                memory_nbytes=limit,
            )
        self._claimed_nbytes = used + wanted
        self._claims_left = len(self.regions) // 4

    def free(self, region: MappedRegion) -> None:
        """Free a region; its memory is freed with the last mapping of any process."""
        del self.regions[region.address]
        _remove(region)

    def used_nbytes(self) -> int:
        """Return the bytes of all segments of this node, including journals and rings."""
        return used_nbytes(self.name)

    def sweep_slots(self) -> int:
        """Recover and remove the slots of dead local clients; return how many.

        A damaged slot is logged once and stays, and its stripe stays open.

        Raises:
            SystemLimitError: a segment cannot be opened at present; its slot stays.
        """
        swept = 0
        for slot_id in journal.slot_ids(self.name):
            try:
                swept += sweep_slot(self.name, slot_id, self.superblock.locks, self.channels)
            except (SegmentError, ConfigError):
                if slot_id not in self._damaged:
                    self._damaged.add(slot_id)
                    name = layout.slot_name(self.name, slot_id)
                    _LOG.exception("a dead writer's slot cannot be recovered: %s", name)
        return swept

    def close(self, *, keep: bool) -> None:
        """End the ownership; unless ``keep``, remove all memory of the node."""
        self.writer.close()
        if not keep:  # as ``remove_all``, but by this process's mappings, not by name
            self.superblock.mark_stopping()
            for region in self.regions.values():
                region.state = RegionState.FREED
            unlink_all(self.name)
        self.superblock.close()

    def release(self) -> None:
        """End the ownership as a killed process does; all memory stays."""
        self.writer.close()
        self.superblock.locks.close()

    def abandon(self) -> None:
        """End the ownership after a failed start; remove only the segments that it created."""
        self.writer.close()
        self.superblock.abandon()

    def _attach_regions(self) -> None:
        for name in listing(layout.name_of(self.name, "region.")):
            region = MappedRegion(self.name, Segment.attach(name))
            if region.state == RegionState.LIVE:
                self.regions[region.address] = region
            else:  # left by a kill: freed but not removed, or not completely created
                _remove(region)


def _remove(region: MappedRegion) -> None:
    region.state = RegionState.FREED  # for all processes that map it
    region.segment.unlink()


def _cookie_of(name: str) -> bytes:
    """Return the node's secret; a restarted node keeps it, because its clients have it.

    Raises:
        SegmentError: it is damaged.
    """

    def fill(segment: Segment) -> None:
        segment.bytes[:] = list(secrets.token_bytes(COOKIE_NBYTES))

    segment = attach_or_create(name, layout.name_of(name, "cookie"), COOKIE_NBYTES, fill)
    if segment.nbytes != COOKIE_NBYTES:
        raise SegmentError(
            f"segment {segment.name} is damaged: it does not have {COOKIE_NBYTES} bytes;"
            " remove it: the node creates another",
            nbytes=segment.nbytes,
        )
    return segment.bytes.tobytes()
