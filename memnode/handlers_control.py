"""Control requests that are done at once: PING, PUBLISH, ATTACH, FREE, LIST and STATS."""

from __future__ import annotations

from typing import cast

from memnode.channel import Channel
from memnode.context import Context
from memnode.registry import describe
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


def ping(_context: Context, _channel: Channel, request: Request) -> Reply:
    """Say that the node lives."""
    return bodied(request, Empty())


def publish(context: Context, _channel: Channel, request: Request) -> Reply:
    """Make a region live under its name."""
    body = cast("Publish", request.body)
    region = context.registry.publish(body.address, exist_ok=body.exist_ok)
    return bodied(request, describe(region, created=region.address == body.address))


def attach(context: Context, _channel: Channel, request: Request) -> Reply:
    """Describe the region of a name or an address."""
    body = cast("Attach", request.body)
    if body.address is not None:
        return bodied(request, describe(context.registry.locate(body.address)))
    return bodied(request, describe(context.registry.by_name(body.kind, body.name)))


def free(context: Context, _channel: Channel, request: Request) -> Reply:
    """End a region."""
    context.registry.free(cast("Free", request.body).address)
    return bodied(request, Empty())


def list_regions(context: Context, _channel: Channel, request: Request) -> Reply:
    """Describe live regions, a page at a time."""
    body = cast("ListRegions", request.body)
    found = context.registry.live_after(body.after, body.limit + 1)
    page = tuple(describe(region) for region in found[: body.limit])
    return bodied(request, Regions(regions=page, more=len(found) > body.limit))


def stats(context: Context, _channel: Channel, request: Request) -> Reply:
    """Give the node's figures."""
    return bodied(request, StatsReply(facts=dict(context.facts())))


def bodied(request: Request, body: Body) -> Reply:
    """Make the reply to a control request that was done."""
    return Reply(request.op, request=request.request, number=request.number, body=body)
