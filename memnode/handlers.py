"""The one table of operations: what the node does with each request of a session.

HELLO and BYE, which begin and end sessions, are the node's own. Here are also the control
requests that are done at once, CREATE and WAIT.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, cast

from memnode import changes, creation, reads
from memnode.context import Channel, Connection, Context, Handler, Park
from memnode.registry import describe
from smbox.errors import LimitError, RequestTimeoutError, SmboxError
from smbox.memory.mapped import MappedRegion
from smbox.wire.codec import Reply, Request, refuse, reply_to
from smbox.wire.messages import (
    Attach,
    Create,
    Empty,
    Free,
    ListRegions,
    Publish,
    Regions,
    StatsReply,
)
from smbox.wire.ops import CHANGES, Op

WAITS_MAX: Final = 64
"""Waits that one connection may have under way."""


def ping(_context: Context, _channel: Channel, request: Request) -> Reply:
    """Say that the node lives."""
    return reply_to(request, body=Empty())


def create(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Find the region, or do one slice of making it.

    While another CREATE makes a region of the same name this one waits, and then takes what
    that one made for the region that exists.
    """
    body = cast("Create", request.body)
    build = context.builds.resume(body, channel.key)
    region: MappedRegion | None = None
    if build is None:
        spec = creation.spec_of(body)
        creation.check_init(spec.dtype, body.init)
        region = context.registry.existing(spec, exist_ok=body.exist_ok)
        if region is None:
            if context.builds.has_like(spec):
                return Park.BUSY
            build = context.builds.begin(spec, body, channel.key)
    if build is not None:
        region = context.builds.step(build)
    if region is None:
        return Park.SLICE
    is_own = region.spec.token == int.from_bytes(body.token, "little")
    return reply_to(request, body=describe(region, created=is_own))


def publish(context: Context, _channel: Channel, request: Request) -> Reply:
    """Make a region live under its name."""
    body = cast("Publish", request.body)
    region = context.registry.publish(body.address, exist_ok=body.exist_ok)
    created = region.address == body.address
    return reply_to(request, body=describe(region, created=created))


def attach(context: Context, _channel: Channel, request: Request) -> Reply:
    """Describe the region of a name or an address."""
    body = cast("Attach", request.body)
    if body.address is not None:
        region = context.registry.locate(body.address)
    else:
        region = context.registry.by_name(body.kind, body.name)
    return reply_to(request, body=describe(region))


def free(context: Context, _channel: Channel, request: Request) -> Reply:
    """End a region."""
    context.registry.free(cast("Free", request.body).address)
    return reply_to(request, body=Empty())


def list_regions(context: Context, channel: Channel, request: Request) -> Reply:
    """Describe live regions that the client may know of, a page at a time."""
    body = cast("ListRegions", request.body)

    def is_seen(name: str) -> bool:
        return context.access.sees(channel.user, name)

    found = context.registry.live_after(body.after, body.limit + 1, is_seen)
    page = tuple(describe(region) for region in found[: body.limit])
    return reply_to(request, body=Regions(regions=page, more=len(found) > body.limit))


def wait(context: Context, channel: Channel, request: Request) -> Reply | None:
    """Answer if the version is reached; else wait for it, while others pass.

    A repeated request replaces the earlier one.

    Raises:
        LimitError: the channel has ``WAITS_MAX`` waits already; nothing changed.
    """
    reply = _reached(context, {}, request)
    if reply is None:
        if request.request not in channel.waits and len(channel.waits) >= WAITS_MAX:
            raise LimitError("too many waits of one connection", waits_max=WAITS_MAX)
        channel.waits[request.request] = request, context.now_s + request.nbytes / 1000
        context.pending[channel.connection] = channel
    return reply


def end_waits(
    context: Context, channels: Sequence[Channel]
) -> Iterator[tuple[Connection, Reply]]:
    """End the waits of these channels that are over; give their replies.

    Each region is looked at once, however many wait for it.
    """
    versions: dict[int, int] = {}
    for channel in channels:
        for key, (request, deadline_s) in list(channel.waits.items()):
            try:
                reply = _reached(context, versions, request, deadline_s)
            except SmboxError as error:  # its region was freed, or it is late
                reply = refuse(request, error)
            if reply is not None:
                del channel.waits[key]
                yield channel.connection, reply


def _reached(
    context: Context, versions: dict[int, int], request: Request, deadline_s: float = math.inf
) -> Reply | None:
    """Answer a WAIT if its version is reached, by ``versions`` or by a look that goes there."""
    address = request.address
    if address not in versions:
        versions[address] = context.registry.locate(address).version()
    if versions[address] >= request.version:
        return reply_to(request, version=versions[address])
    if context.now_s >= deadline_s:
        facts = {"timeout_s": request.nbytes / 1000, "version": versions[address]}
        raise RequestTimeoutError("the version was not reached", **facts)
    return None


def stats(context: Context, _channel: Channel, request: Request) -> Reply:
    """Give the node's figures."""
    return reply_to(request, body=StatsReply(facts=dict(context.facts())))


HANDLERS: Final[dict[Op, Handler]] = {
    Op.PING: ping,
    Op.CREATE: create,
    Op.PUBLISH: publish,
    Op.ATTACH: attach,
    Op.FREE: free,
    Op.LIST: list_regions,
    Op.STATS: stats,
    Op.GET: reads.get,
    Op.GATHER: reads.gather,
    Op.LEND: reads.lend,
    Op.STAMPS: reads.stamps,
    Op.DOT: reads.dot,
    Op.WAIT: wait,
    Op.SNAPSHOT: reads.snapshot,
    **dict.fromkeys(CHANGES, changes.change),
}
