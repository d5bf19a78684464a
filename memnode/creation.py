"""A region that a CREATE has begun to make: a slice at a time, others are served meanwhile."""

from __future__ import annotations

from memnode.registry import Registry
from memnode.sessions import ChannelKey
from smbox.memory.building import Building
from smbox.memory.mapped import MappedRegion
from smbox.wire.messages import Create


class Build:
    """A region in the making.

    Args:
        registry: where it will be found.
        building: its memory.
        create: what was asked for.
        owner: the channel that asked.
    """

    def __init__(
        self, registry: Registry, building: Building, create: Create, owner: ChannelKey
    ) -> None:
        self.create = create
        self.owner = owner
        self._registry = registry
        self._building = building

    def step(self) -> MappedRegion | None:
        """Do one slice of the work; return the region once it is whole.

        Raises:
            OutOfMemoryError: somebody else took the room; nothing is left.
        """
        publish = self.create.publish
        try:
            if not self._building.step():
                return None
            return self._registry.finish(self._building, self.owner, publish=publish)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._registry.give_up(self._building, publish=self.create.publish)
