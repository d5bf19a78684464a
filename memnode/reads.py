"""Handlers of reads: GET, GATHER, LEND, STAMPS, DOT and SNAPSHOT.

GET and GATHER reply with a copy, because the region may change while ZeroMQ still sends;
flow.py limits the memory of such copies. LEND sends the region's own memory, and the client
finds by the stamps which pieces were changed meanwhile.

SNAPSHOT copies a range into a scratch region of the channel while it holds all stripes of the
range, so that the copy has the state of one moment. It copies in slices, between which the node
serves other requests. The unfinished copy belongs to the channel and is cancelled with it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from typing import Final

import numpy as np

from memnode.checks import check_aligned, check_range, check_rows, check_span
from memnode.context import Channel, Context, Park
from smbox import dtypes
from smbox.errors import ConfigError, LayoutMismatchError, RegionFreedError
from smbox.memory.commit import StripeBusy
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.locks import LockFile
from smbox.memory.mapped import SLICE_NBYTES, MappedRegion
from smbox.memory.reading import RangeLock, stamp_of
from smbox.memory.region_header import RegionSpec
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.ops import carried_nbytes, cut, unit_of

HELD_S: Final = 5.0
"""How long a SNAPSHOT holds stripes while it waits for another one; then it releases them for
other writers. The node learns late that a client has cancelled its SNAPSHOT."""


def get(context: Context, channel: Channel, request: Request) -> Reply:
    """Copy a range; each stripe has the state between two commits."""
    region, first, limit = range_of(context, request)
    out = np.empty(carried_nbytes(request.nbytes, request.operand), np.uint8)
    context.reader.read(region, first, limit, out, operand=request.operand)
    return reply_to(request, channel.unsent.add(out))


def gather(context: Context, channel: Channel, request: Request) -> Reply:
    """Copy rows, numbered from the request's address."""
    region = context.registry.locate(request.address)
    row_nbytes, rows = operands.unpack_gather(request.payload, request.nbytes)
    places = np.frombuffer(rows, np.int64)
    first = request.address - region.address
    check_rows(region.spec, first, places, row_nbytes)
    out = np.empty(carried_nbytes(request.nbytes, request.operand), np.uint8)
    context.reader.read_rows(region, first, places, row_nbytes, out, operand=request.operand)
    return reply_to(request, channel.unsent.add(out))


def lend(context: Context, _channel: Channel, request: Request) -> Reply:
    """Send a range from the region's own memory, with its stamp."""
    region, first, limit = _stamped_range(context, request)
    stamp = stamp_of(region, first, limit)  # before any byte is sent
    return reply_to(request, region.data[first:limit].data, version=stamp)


def stamps(context: Context, _channel: Channel, request: Request) -> Reply:
    """Reply with the current stamp of each piece of a range."""
    region, first, limit = _stamped_range(context, request)
    found = [stamp_of(region, *piece) for piece in cut(first, limit, LONG_NBYTES_MAX)]
    return reply_to(request, np.array(found, np.uint64).tobytes())


def dot(context: Context, _channel: Channel, request: Request) -> Reply:
    """Reply with the dot product of a range and another region's, one sum for each stripe."""
    region, first, limit = range_of(context, request)
    check_aligned(region.spec, first, request.nbytes)
    source, begin = source_of(context, request, region.spec)
    if region.spec.dtype.kind != "float":
        raise ConfigError("only floats have a dot product", name=region.spec.name)
    found = [
        context.reader.dot(region, at, source, begin + at - first, end - at)
        for at, end in cut(first, limit, STRIPE_NBYTES)
    ]
    return reply_to(request, np.array(found).tobytes())


def source_of(context: Context, request: Request, spec: RegionSpec) -> tuple[MappedRegion, int]:
    """Return the other region of a FROM or DOT, and the first byte of the range in its data.

    Raises:
        LayoutMismatchError: its dtype is not that of ``spec``.
        SmboxError: as ``check_span``.
    """
    address = operands.unpack_address(request.payload)
    source = context.registry.locate(address)
    if source.spec.dtype != spec.dtype:
        raise LayoutMismatchError(
            "both regions need the same dtype",
            name=source.spec.name,
            dtype=source.spec.dtype.name,
            wanted=spec.dtype.name,
        )
    begin = address - source.address
    check_span(source.spec, begin, request.nbytes)
    return source, begin


def snapshot(context: Context, channel: Channel, request: Request) -> Reply | Park:
    """Do one slice of a copy of a range with all its stripes held; reply with its address.

    It takes no number: a repeated request makes another copy.
    """
    copying = channel.copying or _copying(context, channel, request)
    channel.copying = None  # it stays None if the next slice is the last one, or fails
    try:
        park = next(copying)
    except StopIteration as done:
        return reply_to(request, version=done.value)
    channel.copying = copying
    return park


def _copying(
    context: Context, channel: Channel, request: Request
) -> Generator[Park, None, int]:
    """Do one slice between two yields; closing the generator leaves no lock and no copy."""
    region, nbytes = context.registry.locate(request.address), request.nbytes
    first = request.address - region.address
    check_span(region.spec, first, nbytes)
    with closing(LockFile(region.node)) as locks:
        range_lock = RangeLock(region, locks, first, first + nbytes)
        copy = yield from _scratch_region(context, channel, nbytes)
        done = 0
        limit_s = context.now_s + HELD_S
        try:
            while done < nbytes:
                for address in (request.address, copy.address):
                    context.registry.locate(address)  # it may have been freed meanwhile
                try:
                    range_lock.acquire()
                except StripeBusy as busy:
                    channel.busy = busy
                    if context.now_s >= limit_s:
                        range_lock.release()
                        limit_s = context.now_s + HELD_S
                    yield Park.BUSY
                    continue
                limit = min(done + SLICE_NBYTES, nbytes)
                np.copyto(copy.data[done:limit], region.data[first + done : first + limit])
                done = limit
                if done < nbytes:
                    yield Park.SLICE
        except BaseException:
            with suppress(RegionFreedError):
                context.registry.free(copy.address)
            raise
        finally:
            range_lock.release()
    return copy.address


def _scratch_region(
    context: Context, channel: Channel, nbytes: int
) -> Generator[Park, None, MappedRegion]:
    """Create a region of a channel, whose pages exist before any lock is taken."""
    spec = RegionSpec("snapshot", dtypes.by_name("uint8"), (nbytes,))
    building = context.memory.begin(spec)
    try:
        while not building.step():
            yield Park.SLICE
        return context.registry.finish(building, channel.key, publish=False, scratch=True)
    except BaseException:
        building.abandon()
        raise


def range_of(context: Context, request: Request) -> tuple[MappedRegion, int, int]:
    """Return the region of a request, and first and limit of the range in its data.

    Raises:
        SmboxError: as ``Registry.locate`` and ``check_range``.
    """
    region = context.registry.locate(request.address)
    first = request.address - region.address
    check_range(first, request.nbytes, region.nbytes, unit_of(request.op))
    return region, first, first + request.nbytes


def _stamped_range(context: Context, request: Request) -> tuple[MappedRegion, int, int]:
    """Return the same for LEND and STAMPS, which need a region of consistency 'stripe'.

    Changes of a lock-free region do not change stamps, and a torn word could be sent.
    """
    region, first, limit = range_of(context, request)
    if region.spec.consistency != Consistency.STRIPE:
        raise ConfigError("only consistency 'stripe' can be lent", name=region.spec.name)
    return region, first, limit
