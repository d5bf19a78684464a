"""A region that a CREATE has begun to make: a slice at a time, others are served meanwhile."""

from __future__ import annotations

import logging
from typing import Final

from memnode.registry import Registry
from memnode.sessions import ChannelKey
from smbox.memory.building import Building
from smbox.memory.mapped import MappedRegion
from smbox.wire.messages import Create

UNCLAIMED_S: Final = 5.0
"""How long a region that is to have no name is made on for a CREATE that is not sent again."""

_LOG = logging.getLogger(__name__)


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
        create = self.create
        try:
            if not self._building.step():
                return None
            return self._registry.finish(
                self._building, self.owner, publish=create.publish, scratch=create.scratch
            )
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Leave nothing of it."""
        self._registry.give_up(self._building, publish=self.create.publish)


class Unattended:
    """Regions in the making whose CREATE was cut off from its client.

    Making a large region takes longer than its client waits before it sends the CREATE again:
    that copy goes on with it. Where none comes, a region with a name is made all the same.

    Args:
        registry: where they will be found.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._builds: list[tuple[Build, float]] = []  # and until when one without a name stays

    def __len__(self) -> int:
        return len(self._builds)

    def add(self, build: Build, *, now_s: float) -> None:
        """Take up a region whose channel has lost its connection."""
        self._builds.append((build, now_s + UNCLAIMED_S))

    def claim(self, create: Create) -> Build | None:
        """Hand out what an earlier copy of this CREATE has begun."""
        for at, (build, _) in enumerate(self._builds):
            if build.create.token == create.token:
                del self._builds[at]
                return build
        return None

    def step(self, *, now_s: float) -> None:
        """Do a slice of each; what nobody will find is given up."""
        builds, self._builds = self._builds, []
        for build, limit_s in builds:
            if not build.create.publish and now_s >= limit_s:
                build.abandon()
            elif not self._is_over(build):
                self._builds.append((build, limit_s))

    def release(self, owner: ChannelKey) -> None:
        """Give up what a channel began that is gone."""
        for build, _ in self._builds:
            if build.owner == owner:
                build.abandon()
        self._builds = [each for each in self._builds if each[0].owner != owner]

    def close(self) -> None:
        """Give up all."""
        while self._builds:
            self._builds.pop()[0].abandon()

    def _is_over(self, build: Build) -> bool:
        try:
            region = build.step()
        except Exception as error:  # noqa: BLE001 -- nobody is there to be told
            _LOG.info("a region that was begun is given up: %s", error)
            return True
        if region is not None and not build.create.publish:
            self._registry.free(region.address)
        return region is not None
