"""The control requests that are done at once: PING, PUBLISH, ATTACH, FREE, LIST and STATS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from memnode.registry import Registry, describe
from smbox.wire.codec import Reply, Request
from smbox.wire.messages import (
    Attach,
    Body,
    Empty,
    Free,
    ListRegions,
    Publish,
    Regions,
    StatsReply,
)
from smbox.wire.ops import Op

Facts = Callable[[], Mapping[str, object]]


class Desk:
    """Answers control requests.

    Args:
        registry: knows the regions.
        facts: gives the node's figures for STATS.
    """

    def __init__(self, registry: Registry, facts: Facts) -> None:
        self._registry = registry
        self._facts = facts

    def answer(self, request: Request) -> Body:
        """Do what is asked and return the body of the reply.

        Raises:
            RemoteError: refused.
        """
        return HANDLERS[request.op](self, request)

    def ping(self, _request: Request) -> Body:
        """Say that the node lives."""
        return Empty()

    def publish(self, request: Request) -> Body:
        """Make a region live under its name."""
        body = cast("Publish", request.body)
        region = self._registry.publish(body.address, exist_ok=body.exist_ok)
        return describe(region, created=region.address == body.address)

    def attach(self, request: Request) -> Body:
        """Describe the region of a name or an address."""
        body = cast("Attach", request.body)
        if body.address is not None:
            return describe(self._registry.locate(body.address))
        return describe(self._registry.by_name(body.kind, body.name))

    def free(self, request: Request) -> Body:
        """End a region."""
        self._registry.free(cast("Free", request.body).address)
        return Empty()

    def list_regions(self, request: Request) -> Body:
        """Describe live regions, a page at a time."""
        body = cast("ListRegions", request.body)
        found = self._registry.live_after(body.after, body.limit + 1)
        return Regions(
            regions=tuple(describe(region) for region in found[: body.limit]),
            more=len(found) > body.limit,
        )

    def stats(self, _request: Request) -> Body:
        """Give the node's figures."""
        return StatsReply(facts=dict(self._facts()))


HANDLERS: Final[dict[Op, Callable[[Desk, Request], Body]]] = {
    Op.PING: Desk.ping,
    Op.PUBLISH: Desk.publish,
    Op.ATTACH: Desk.attach,
    Op.FREE: Desk.free,
    Op.LIST: Desk.list_regions,
    Op.STATS: Desk.stats,
}


class ControlTask:
    """A control request under way; done at its first try.

    Args:
        request: of an op in ``HANDLERS``.
        desk: who answers.
    """

    def __init__(self, request: Request, desk: Desk) -> None:
        self.request = request
        self._desk = desk

    def advance(self) -> Reply | None:
        """Answer; see ``Task``."""
        request = self.request
        body = self._desk.answer(request)
        return Reply(request.op, request=request.request, number=request.number, body=body)

    def abandon(self) -> None:
        """Do nothing."""
