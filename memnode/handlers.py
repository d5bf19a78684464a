"""Table of the request handlers, and the handlers of control requests and WAIT.

node.py itself handles HELLO and BYE, which start and end sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, cast

from memnode import changes, creation, reads
from memnode.context import Channel, Connection, Context, Handler, Park
from memnode.registry import describe
from smbox.errors import (
    ConfigError,
    LimitError,
    RegionNotFoundError,
    RequestTimeoutError,
    SmboxError,
)
from smbox.wire import messages
from smbox.wire.codec import Reply, Request, refuse, reply_to
from smbox.wire.ops import CHANGES, Op

WAITS_MAX: Final = 64
"""Limit of the pending WAITs of one connection."""


def ping(_context: Context, _channel: Channel, request: Request) -> Reply:
    """Reply, which shows that the node is alive."""
    return reply_to(request, body=messages.Empty())


def create(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Find the region, or do one slice of creating it.

    While another CREATE creates a region of the same name, this one is parked. Then that region
    is an existing one for it.
    """
    body = cast("messages.Create", request.body)
    build = context.builds.in_progress.get((channel.key, body.token))
    if build is None:
        spec = creation.spec_of(body)
        region = context.registry.existing(spec, exist_ok=body.exist_ok)
        if region is not None:
            return reply_to(request, body=describe(region))
        if context.builds.conflicts(spec):
            return Park.BUSY
        build = context.builds.begin(spec, body, channel.key)
    region = context.builds.step(build)
    return Park.SLICE if region is None else reply_to(request, body=describe(region))


def publish(context: Context, _channel: Channel, request: Request) -> Reply:
    """Make a region live under its name."""
    context.registry.publish(cast("messages.Publish", request.body).address)
    return reply_to(request, body=messages.Empty())


def attach(context: Context, _channel: Channel, request: Request) -> Reply:
    """Describe the region of a name, or the one that contains an address."""
    body = cast("messages.Attach", request.body)
    if body.address is not None:
        return reply_to(request, body=describe(context.registry.locate(body.address)))
    region = context.registry.find(body.kind, body.name)
    if region is None:
        message = "no region has this name; see `smbox ls`. Counters: box.counter"
        raise RegionNotFoundError(message, name=body.name)
    return reply_to(request, body=describe(region))


def free(context: Context, channel: Channel, request: Request) -> Reply:
    """Free a region, or discard what a CREATE of the client began."""
    body = cast("messages.Free", request.body)
    if body.address is not None:
        context.registry.free(body.address)
    elif body.token is not None:
        context.builds.release(channel.key, body.token)
        context.registry.discard(body.token, channel.key, published=body.published)
    else:
        raise ConfigError("FREE needs an address or a token")
    return reply_to(request, body=messages.Empty())


def list_regions(context: Context, channel: Channel, request: Request) -> Reply:
    """Describe a page of the live regions that the client may see."""
    body = cast("messages.ListRegions", request.body)
    live = context.registry.live_after(body.after)
    visible = (each for each in live if context.access.can_see(channel.user, each.spec.name))
    found = list(islice(visible, body.limit + 1))
    page = tuple(describe(region) for region in found[: body.limit])
    return reply_to(request, body=messages.Regions(regions=page, more=len(found) > body.limit))


def wait(context: Context, channel: Channel, request: Request) -> Reply | None:
    """Reply if the version is reached; else keep the WAIT and let later requests run.

    A repeated request replaces the earlier one.

    Raises:
        LimitError: the channel has ``WAITS_MAX`` pending WAITs; nothing changed.
    """
    reply = _wait_reply(context, channel, {}, (request, math.inf))
    if reply is None:
        if request.request not in channel.waits and len(channel.waits) >= WAITS_MAX:
            raise LimitError("too many pending WAITs of one connection", waits_max=WAITS_MAX)
        channel.waits[request.request] = request, context.now_s + request.nbytes / 1000
        context.pending[channel.connection] = channel
    return reply


def finish_waits(
    context: Context, channels: Sequence[Channel]
) -> Iterator[tuple[Connection, Reply]]:
    """Finish the WAITs of these channels that are done or timed out; yield their replies.

    The version of each region is read once, for all WAITs.
    """
    versions: dict[int, int] = {}
    for channel in channels:
        for key, known in list(channel.waits.items()):
            try:
                reply = _wait_reply(context, channel, versions, known)
            except SmboxError as error:  # such as: the region was freed, or the WAIT timed out
                reply = refuse(known[0], error)
            if reply is not None:
                del channel.waits[key]
                yield channel.connection, reply


def _wait_reply(
    context: Context, channel: Channel, versions: dict[int, int], known: tuple[Request, float]
) -> Reply | None:
    """Return the reply to a WAIT whose version is reached, else None.

    Args:
        context: of the node.
        channel: of the client.
        versions: versions by address; one that is missing is read and added.
        known: the WAIT, and its deadline in monotonic seconds.

    Raises:
        RequestTimeoutError: the deadline has passed.
        AccessDeniedError: the client's key was taken back meanwhile.
        SmboxError: as ``Registry.locate``.
    """
    request, deadline_s = known
    address = request.address
    if address not in versions:
        versions[address] = context.registry.locate(address).version()
    is_reached = versions[address] >= request.version
    if not is_reached and context.now_s < deadline_s:
        return None
    if channel.user:
        context.access.check(context.registry, channel.key, channel.user, request)
    if is_reached:
        return reply_to(request, version=versions[address])
    facts = {"timeout_s": request.nbytes / 1000, "version": versions[address]}
    raise RequestTimeoutError("the version was not reached", **facts)


def stats(context: Context, _channel: Channel, request: Request) -> Reply:
    """Return the node's figures."""
    return reply_to(request, body=messages.StatsReply(facts=dict(context.facts())))


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
