"""The names and addresses of a node's regions, and who may have them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Final

from smbox.errors import (
    AccessDeniedError,
    AddressRangeError,
    LimitError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.channels import ChannelKey
from smbox.memory.layout import RegionState, align
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec, check_same_layout
from smbox.wire.messages import RegionBody

REGIONS_MAX: Final = 65_536

NameKey = tuple[int, str]
"""Kind and name: names of arrays, counters and barriers live apart."""


class Registry:
    """Finds regions by name and by address, and settles who wins a name.

    Args:
        memory: owned by this process.
        regions_max: how many regions there may be.
    """

    def __init__(self, memory: NodeMemory, regions_max: int = REGIONS_MAX) -> None:
        self._memory = memory
        self._regions_max = regions_max
        self._names = {_key(region.spec): region for region in memory.regions.values()}
        self._addresses = sorted(memory.regions)
        self._located: tuple[int, int, MappedRegion | None] = (0, 0, None)
        # who made a region that is not published, and whether it goes when that resumes
        self._unpublished: dict[int, tuple[ChannelKey, bool]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def locate(self, address: int) -> MappedRegion:
        """Return the region whose pages hold ``address``.

        Raises:
            RegionFreedError: the address was a region's once.
            AddressRangeError: it never was.
        """
        first, limit, found = self._located  # the last one, which is asked for again and again
        if found is not None and first <= address < limit:
            return found
        at = bisect_right(self._addresses, address) - 1
        if at >= 0:
            region = self._memory.regions[self._addresses[at]]
            limit = region.address + align(max(region.nbytes, 1))
            if address < limit:
                self._located = (region.address, limit, region)
                return region
        superblock = self._memory.superblock
        if superblock.first_address <= address < superblock.high_water:
            raise RegionFreedError("the region at this address was freed", address=address)
        raise AddressRangeError("no region has this address", address=address)

    def beginning_at(self, address: int) -> MappedRegion:
        """Return the region whose data begins at ``address``; raises as ``locate``."""
        region = self.locate(address)
        if region.address != address:
            raise AddressRangeError("no region begins at this address", address=address)
        return region

    def find(self, kind: int, name: str) -> MappedRegion | None:
        """Return the live region of a name, if there is one."""
        return self._names.get((kind, name))

    def by_name(self, kind: int, name: str) -> MappedRegion:
        """Return the live region of a name.

        Raises:
            RegionNotFoundError: there is none (yet).
        """
        region = self.find(kind, name)
        if region is None:
            raise RegionNotFoundError("no region has this name", name=name)
        return region

    def existing(self, spec: RegionSpec, *, exist_ok: bool) -> MappedRegion | None:
        """Return the region that answers a CREATE without making one, if there is one.

        Raises:
            RegionExistsError: another region has the name.
            LayoutMismatchError: it has, and another layout.
        """
        named = self._names.get(_key(spec))
        unnamed = (self._memory.regions[address] for address in self._unpublished)
        for region in (named, *unnamed):  # one that an earlier copy of the CREATE made
            if region is not None and spec.token and region.spec.token == spec.token:
                return region
        return None if named is None else _answer_with(named, spec, exist_ok=exist_ok)

    def begin(self, spec: RegionSpec, init: float | None) -> Building:
        """Begin to make a region.

        Raises:
            LimitError: no more regions.
            OutOfMemoryError: no room.
        """
        if len(self) >= self._regions_max:
            raise LimitError("the node has all the regions it takes", limit=self._regions_max)
        return self._memory.begin(spec, init)

    def finish(
        self, building: Building, owner: ChannelKey, *, publish: bool, scratch: bool = False
    ) -> MappedRegion:
        """Give a region that is whole its address and, to publish it, its name."""
        region = building.finish(RegionState.LIVE if publish else RegionState.BUILDING)
        self._memory.add(region)
        insort(self._addresses, region.address)
        if publish:
            self._names[_key(region.spec)] = region
        else:
            self._unpublished[region.address] = (owner, scratch)
        return region

    def publish(self, address: int, *, exist_ok: bool) -> MappedRegion:
        """Make a region live under its name, or free it where another won the name.

        Returns:
            The region that has the name now.

        Raises:
            RegionExistsError: another won; ours is freed.
            LayoutMismatchError: it has another layout, too; ours is freed.
            AddressRangeError: there is no such region.
        """
        region = self.beginning_at(address)
        if region.state == RegionState.LIVE:
            return region
        winner = self._names.get(_key(region.spec))
        if winner is None:
            self._memory.publish(region)
            self._unpublished.pop(address, None)
            self._names[_key(region.spec)] = region
            return region
        spec = region.spec
        self._remove(region)
        return _answer_with(winner, spec, exist_ok=exist_ok)

    def free(self, address: int) -> None:
        """End the region that begins at ``address``.

        Raises:
            RegionFreedError: it was freed before; who asks again takes that as success.
            AddressRangeError: there never was such a region.
        """
        self._remove(self.beginning_at(address))

    def owned_by(self, address: int, client_id: int) -> MappedRegion:
        """Return the region that holds ``address``, of a client that has not published it.

        Raises:
            AccessDeniedError: it is public, or another client's.
            RegionFreedError: the address was a region's once.
            AddressRangeError: it never was.
        """
        if not self.owns(address, client_id):
            raise AccessDeniedError(
                "only a client's own region that is not published takes copies", address=address
            )
        return self.locate(address)

    def owns(self, address: int, client_id: int) -> bool:
        """Tell whether a client has made this region and not published it; raises as above."""
        made = self._unpublished.get(self.locate(address).address)
        return made is not None and made[0][0] == client_id

    def drop_unpublished(self, owner: ChannelKey, *, only_scratch: bool = False) -> None:
        """Free what a channel made and did not publish, or of that what goes as it resumes."""
        for address, (creator, is_scratch) in list(self._unpublished.items()):
            if creator == owner and (is_scratch or not only_scratch):
                self._remove(self._memory.regions[address])

    def live_after(
        self, address: int, count: int, is_seen: Callable[[str], bool]
    ) -> list[MappedRegion]:
        """Return up to ``count`` live regions at addresses above ``address``, ascending.

        Args:
            address: behind which to look.
            count: how many at most.
            is_seen: tells whether the caller may know of a region of this name.
        """
        found: list[MappedRegion] = []
        for known in self._addresses[bisect_right(self._addresses, address) :]:
            region = self._memory.regions[known]
            if region.state == RegionState.LIVE and is_seen(region.spec.name):
                found.append(region)
            if len(found) == count:
                break
        return found

    def _remove(self, region: MappedRegion) -> None:
        if self._names.get(_key(region.spec)) is region:
            del self._names[_key(region.spec)]
        self._unpublished.pop(region.address, None)
        self._located = (0, 0, None)
        self._addresses.remove(region.address)
        self._memory.free(region)


def describe(region: MappedRegion, *, created: bool = False) -> RegionBody:
    """Say of a region what a client needs to know."""
    spec = region.spec
    return RegionBody(
        address=region.address,
        name=spec.name,
        kind=spec.kind,
        dtype=spec.dtype.name,
        shape=spec.shape,
        nbytes=region.nbytes,
        consistency=spec.consistency,
        version=region.version(),
        created=created,
        live=region.state == RegionState.LIVE,
    )


def _answer_with(region: MappedRegion, spec: RegionSpec, *, exist_ok: bool) -> MappedRegion:
    if not exist_ok:
        raise RegionExistsError(
            "a region of this name exists; attach it, or pass exist_ok", name=spec.name
        )
    check_same_layout(region.spec, spec)
    return region


def _key(spec: RegionSpec) -> NameKey:
    return spec.kind, spec.name
