"""CREATE and SNAPSHOT: done in slices, between which the node serves others.

What they have begun stands in the channel, and goes when the channel resumes, ends or expires.
"""

from __future__ import annotations

from typing import cast

from memnode.channel import Channel, Park
from memnode.checks import check_span
from memnode.context import Context
from memnode.creation import Build
from memnode.handlers_control import bodied
from memnode.registry import describe
from memnode.snapshots import Snapshot
from memnode.specs import check_init, spec_of
from smbox.memory.mapped import MappedRegion
from smbox.memory.recovery import StripeBusy
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to
from smbox.wire.messages import Create


def create(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Find the region, or do one slice of making it.

    While another CREATE makes a region of the same name this one waits, and then takes what
    that one made for the region that exists.
    """
    body = cast("Create", request.body)
    build = channel.build or context.unattended.claim(body)
    if build is None:
        spec = spec_of(body)
        check_init(spec.dtype, body.init)
        found = context.registry.existing(spec, exist_ok=body.exist_ok)
        if found is not None:
            return _created(request, body, found)
        if context.registry.is_being_built(spec):
            return Park.BUSY
        building = context.registry.begin(spec, body.init, publish=body.publish)
        build = Build(context.registry, building, body, channel.session.key)
    channel.build = None
    region = build.step()
    if region is None:
        channel.build = build
        return Park.SLICE
    return _created(request, body, region)


def snapshot(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Copy one slice of a range, all its stripes held, into a region that the client owns.

    It takes no number: repeated, it copies again, and the client reads the copy only when it
    has been answered.
    """
    try:
        if not _copy(context, channel, request):
            return Park.SLICE
    except StripeBusy:
        raise
    except BaseException:
        channel.end_snapshot()
        raise
    channel.end_snapshot()
    return reply_to(request)


def _copy(context: Context, channel: Channel, request: Request) -> bool:
    """Do one slice; both regions are looked up each time, for they may be freed meanwhile."""
    region = context.registry.locate(request.address)
    first, nbytes = request.address - region.address, request.nbytes
    check_span(region.spec, first, nbytes)
    address = operands.unpack_address(request.payload)
    target = context.registry.owned_by(address, channel.session.key[0])
    begin = address - target.address
    check_span(target.spec, begin, nbytes)
    if channel.snapshot is None:
        span = (first, first + nbytes)
        channel.snapshot = Snapshot(
            context.lock_files, region, span, target, begin, now_s=context.now_s
        )
    return channel.snapshot.step(now_s=context.now_s)


def _created(request: Request, body: Create, region: MappedRegion) -> Reply:
    token = int.from_bytes(body.token, "little")
    return bodied(request, describe(region, created=region.spec.token == token))
