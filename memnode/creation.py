"""CREATE: finds the region or makes it, a slice at a time, so that the node serves others."""

from __future__ import annotations

from typing import cast

from memnode.channel import Channel
from memnode.checks import check_init, spec_of
from memnode.registry import Registry, describe
from smbox.memory.building import Building
from smbox.memory.mapped import MappedRegion
from smbox.wire.codec import Reply, Request
from smbox.wire.messages import Create


class CreateTask:
    """A CREATE under way.

    While another CREATE of the same name is being built this one waits, and then takes what
    that one made for the region that exists.

    Args:
        request: a CREATE.
        channel: who asks.
        registry: knows the names.
    """

    def __init__(self, request: Request, channel: Channel, registry: Registry) -> None:
        self.request = request
        self._create = cast("Create", request.body)
        self._channel = channel
        self._registry = registry
        self._building: Building | None = None

    @property
    def is_building(self) -> bool:
        """Whether the next try does another slice of work."""
        return self._building is not None

    def advance(self) -> Reply | None:
        """Find the region, or do one slice of making it; see ``Task``."""
        if self._building is None:
            found = self._begin()
            if found is not None:
                return self._reply(found)
        return None if self._building is None else self._step(self._building)

    def abandon(self) -> None:
        """Leave nothing of a region that is half made."""
        if self._building is not None:
            self._registry.give_up(self._building, publish=self._create.publish)
            self._building = None

    def _begin(self) -> MappedRegion | None:
        create = self._create
        spec = spec_of(create)
        check_init(spec.dtype, create.init)
        found = self._registry.existing(spec, exist_ok=create.exist_ok)
        if found is None and not self._registry.is_being_built(spec):
            self._building = self._registry.begin(spec, create.init, publish=create.publish)
        return found

    def _step(self, building: Building) -> Reply | None:
        publish = self._create.publish
        try:
            if not building.step():
                return None
            region = self._registry.finish(building, self._channel.client_id, publish=publish)
        except BaseException:
            self.abandon()
            raise
        self._building = None
        return self._reply(region)

    def _reply(self, region: MappedRegion) -> Reply:
        token = int.from_bytes(self._create.token, "little")
        request = self.request
        return Reply(
            request.op,
            request=request.request,
            number=request.number,
            body=describe(region, created=region.spec.token == token),
        )
