"""Registry of a node's regions by name and address."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Final

from smbox.errors import AddressRangeError, RegionExistsError, RegionFreedError
from smbox.memory.channels import ChannelKey
from smbox.memory.layout import RegionState, align
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec, check_same_layout
from smbox.wire.messages import RegionBody

_EXISTS: Final = "a region of this name exists; attach it, or pass exist_ok"


class Registry:
    """Finds regions by name and by address, and gives a name to one region only.

    Args:
        memory: owned by this process.
    """

    def __init__(self, memory: NodeMemory) -> None:
        self._memory = memory
        self._names = {_key(region.spec): region for region in memory.regions.values()}
        self._addresses = sorted(memory.regions)
        # by address of an unpublished region: its creator, and whether it is scratch
        self._unpublished: dict[int, tuple[ChannelKey, bool]] = {}

    def locate(self, address: int) -> MappedRegion:
        """Return the region whose pages contain ``address``.

        Raises:
            RegionFreedError: the region at this address was freed.
            AddressRangeError: no region ever had this address.
        """
        at = bisect_right(self._addresses, address) - 1
        if at >= 0:
            region = self._memory.regions[self._addresses[at]]
            if address < region.address + align(max(region.nbytes, 1)):
                return region
        superblock = self._memory.superblock
        if superblock.first_address <= address < superblock.high_water:
            raise RegionFreedError("the region at this address was freed", address=address)
        raise AddressRangeError("no region has this address", address=address)

    def at_address(self, address: int) -> MappedRegion:
        """Return the region whose data begins at ``address``; raises as ``locate``."""
        region = self.locate(address)
        if region.address != address:
            raise AddressRangeError("no region begins at this address", address=address)
        return region

    def find(self, kind: int, name: str) -> MappedRegion | None:
        """Return the live region of this kind and name; each kind has its own names."""
        return self._names.get((kind, name))

    def existing(self, spec: RegionSpec, *, exist_ok: bool) -> MappedRegion | None:
        """Return the existing region that answers a CREATE; None if there is none.

        Raises:
            RegionExistsError: another region has the name.
            LayoutMismatchError: another region has the name, and another layout.
        """
        named = self._names.get(_key(spec))
        unnamed = (self._memory.regions[address] for address in self._unpublished)
        for region in (named, *unnamed):  # created by an earlier copy of the CREATE
            if region is not None and any(spec.token) and region.spec.token == spec.token:
                return region
        if named is None:
            return None
        if not exist_ok:
            raise RegionExistsError(_EXISTS, name=spec.name)
        check_same_layout(named.spec, spec)
        return named

    def finish(
        self, building: Building, owner: ChannelKey, *, publish: bool, scratch: bool = False
    ) -> MappedRegion:
        """Register a completed region under its address and, if published, its name."""
        region = building.finish(RegionState.LIVE if publish else RegionState.BUILDING)
        self._memory.regions[region.address] = region
        insort(self._addresses, region.address)
        if publish:
            self._names[_key(region.spec)] = region
        else:
            self._unpublished[region.address] = (owner, scratch)
        return region

    def publish(self, address: int) -> None:
        """Make a region live under its name.

        Raises:
            RegionExistsError: another region has the name; nothing changed.
            AddressRangeError: no region begins at this address.
        """
        region = self.at_address(address)
        if region.state == RegionState.LIVE:
            return
        key = _key(region.spec)
        if key in self._names:
            raise RegionExistsError(_EXISTS, name=region.spec.name)
        region.state = RegionState.LIVE
        self._unpublished.pop(address, None)
        self._names[key] = region

    def free(self, address: int) -> None:
        """Free the region that begins at ``address``.

        Raises:
            RegionFreedError: it was freed before; a client that repeats FREE ignores this.
            AddressRangeError: no region ever began at this address.
        """
        self._remove(self.at_address(address))

    def owns(self, address: int, client_id: bytes) -> bool:
        """Return whether the region is unpublished and this client's; raises as ``locate``."""
        made = self._unpublished.get(self.locate(address).address)
        return made is not None and made[0][0] == client_id

    def drop_unpublished(self, owner: ChannelKey, *, only_scratch: bool = False) -> None:
        """Free the unpublished regions of a channel, or only the scratch regions."""
        for address, (creator, is_scratch) in list(self._unpublished.items()):
            if creator == owner and (is_scratch or not only_scratch):
                self._remove(self._memory.regions[address])

    def discard(self, token: bytes, owner: ChannelKey, *, published: bool = False) -> None:
        """Free the unpublished region of a channel with this token, if there is one.

        Args:
            token: of its CREATE; only its creator knows it.
            owner: the channel.
            published: free a published region with this token, too.
        """
        for address in [*(self._memory.regions if published else self._unpublished)]:
            region = self._memory.regions[address]
            creator, _ = self._unpublished.get(address, (owner, False))
            if any(token) and region.spec.token == token and creator == owner:
                self._remove(region)

    def live_after(self, address: int) -> Iterator[MappedRegion]:
        """Yield the live regions at addresses above ``address``, ascending."""
        for known in self._addresses[bisect_right(self._addresses, address) :]:
            region = self._memory.regions[known]
            if region.state == RegionState.LIVE:
                yield region

    def _remove(self, region: MappedRegion) -> None:
        if self._names.get(_key(region.spec)) is region:
            del self._names[_key(region.spec)]
        self._unpublished.pop(region.address, None)
        self._addresses.remove(region.address)
        self._memory.free(region)


def describe(region: MappedRegion) -> RegionBody:
    """Return the description of a region for a reply."""
    spec = region.spec
    return RegionBody(
        region.address, spec.name, spec.kind, spec.dtype.name, spec.shape, spec.consistency
    )


def _key(spec: RegionSpec) -> tuple[int, str]:
    return spec.kind, spec.name
