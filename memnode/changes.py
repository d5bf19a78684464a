"""Changes: PUT, ACCUMULATE, ELASTIC, FETCH, FROM, UPDATE and BATCH, each exactly once.

The rules are those of docs/protocol.md, "Numbers". A change takes consecutive numbers, one for
each stripe or item, and each of these is a commit of its own; all of them are one native call.
Those up to the channel's ``applied`` are done; the next one is committed; a later one is a gap,
which node.py tells. So a request may be run any number of times: it goes on where it was, and
answers out of the channel's ring.

A narrow exchange is answered with its operand, moved: computed by the commit's kernel from the
ring's old bytes and the operand, so that a repeated request gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.checks import (
    check_elements,
    check_operand,
    check_range,
    check_source,
    check_step,
    check_whole,
    terms_of,
)
from memnode.context import Channel, Context
from smbox.errors import RemoteProtocolError, SessionExpiredError, SmboxError
from smbox.memory import orders
from smbox.memory.commit import moved, run_orders
from smbox.memory.kernels import KERNELS, KernelCode, OptimizerCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, refuse, reply_to
from smbox.wire.header import Buffer, unpack_scale
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, Op, carried_nbytes, count, unit_of

_NOTHING: Final = orders.Output.NOTHING  # to look a member up in its class takes longer
_OLD: Final = orders.Output.OLD


class Change(NamedTuple):
    """A change that was checked against its region; ``source`` is kept as long as its order."""

    region: MappedRegion
    kernel: KernelCode | OptimizerCode
    first: int
    limit: int
    scale: float
    source: NDArray[np.uint8]
    operand: int
    output: orders.Output
    siblings: tuple[MappedRegion, ...] = ()
    parameters: NDArray[np.float64] | None = None


def change(context: Context, channel: Channel, request: Request) -> Reply:
    """Commit what is not applied yet of a change, and answer all of it.

    Raises:
        StripeBusy: another writer holds a stripe; what was committed until then counts.
    """
    answers = request.op in ANSWERS
    try:
        if request.number < 1 or request.numbers < 1:
            raise RemoteProtocolError("a change takes numbers", op=request.op.name)
        done = channel.row.applied + 1 - request.number
        if done >= request.numbers:
            context.metrics.duplicates += request.numbers
        elif request.op is Op.BATCH:
            _commit_items(context, channel, request, done)
        else:
            _commit_range(context, channel, request, done)
        return reply_to(request, _answer(channel, request) if answers else b"")
    except SmboxError as error:  # what is applied gives its answers all the same
        parts = _parts(channel, request) if answers and request.number > 0 else ()
        old = b"".join(part.data for part in parts)
        return refuse(request, error, applied=channel.row.applied, old=old)


def _commit_range(context: Context, channel: Channel, request: Request, done: int) -> None:
    """Commit the stripes of a range that are not done."""
    if request.op is Op.UPDATE:
        found = _step(context, request)
    elif request.op is Op.FROM:
        found = _from(context, request)
    else:
        found = _checked(context, request, unit_of(request.op), request.payload)
    first, limit, writer = found.first, found.limit, context.memory.writer
    _check_numbers(request, count(first, limit, STRIPE_NBYTES))
    block = channel.block
    if found.output:
        answer_nbytes = min(limit - first, STRIPE_NBYTES)
        block = channel.answers.block_for(answer_nbytes)
    at = max(first, (first // STRIPE_NBYTES + done) * STRIPE_NBYTES)
    _write(writer.order, 0, found, block, request.number, at)
    run_orders(writer, writer.order, [(found.region, *found.siblings)], limit - first)


def _commit_items(context: Context, channel: Channel, request: Request, done: int) -> None:
    """Commit the items of a BATCH that are not done, up to the first that is refused."""
    _check_numbers(request, len(request.items))
    changes: list[Change] = []
    refusal: SmboxError | None = None
    for item in request.items[done:]:
        try:
            changes.append(_checked(context, item, STRIPE_NBYTES, item.source))
        except SmboxError as error:
            refusal = error
            break
    answering = [found.limit - found.first for found in changes if found.output]
    row = channel.block
    if answering:
        row = channel.answers.block_for(max(answering))
    block = orders.Block(len(changes) * orders.ORDER_NBYTES)
    for place, found in enumerate(changes):
        _write(block, place, found, row, request.number + done + place, found.first)
    regions = [(found.region,) for found in changes]
    run_orders(context.memory.writer, block, regions, len(request.payload))
    if refusal is not None:
        raise refusal


def _check_numbers(request: Request, wanted: int) -> None:
    """Check that a change takes as many numbers as it has stripes or items.

    Raises:
        RemoteProtocolError: it does not.
    """
    if request.numbers != wanted:
        raise RemoteProtocolError(
            "a change takes a number for each stripe it touches, or each item",
            numbers=request.numbers,
            wanted=wanted,
        )


def _checked(context: Context, asked: Request | Item, unit: int, source: Buffer) -> Change:
    """Check a change, of at most one ``unit`` of bytes, against its region.

    Raises:
        SmboxError: it may not run; see checks.py.
    """
    region = context.registry.locate(asked.address)
    first, nbytes = asked.address - region.address, asked.nbytes
    code, scale = terms_of(asked.op, asked.kernel, region.dtype_code, asked.scale)
    check_range(first, nbytes, region.nbytes, STRIPE_NBYTES if KERNELS[code].is_whole else unit)
    if asked.operand:
        check_operand(asked.operand, region.spec)
    check_elements(code, region.spec, first, nbytes)
    output = _OLD if asked.op in ANSWERS else _NOTHING
    array = np.frombuffer(source, np.uint8)
    return Change(region, code, first, first + nbytes, scale, array, asked.operand, output)


def _from(context: Context, request: Request) -> Change:
    """Check a FROM: the operand is another region, each stripe as between two commits."""
    found = _checked(context, request, unit_of(request.op), b"")
    address = operands.unpack_address(request.payload)
    source = context.registry.locate(address)
    begin = address - source.address
    check_source(found.region.spec, source.spec, begin, request.nbytes)
    operand = np.empty(request.nbytes, np.uint8)
    context.reader.read(source, begin, begin + request.nbytes, operand)
    return found._replace(source=operand)


def _step(context: Context, request: Request) -> Change:
    """Check an UPDATE: a step of an optimizer, parameters and state in one commit."""
    region = context.registry.locate(request.address)
    first, nbytes = request.address - region.address, request.nbytes
    check_range(first, nbytes, region.nbytes)
    check_whole(region.spec, first, nbytes)
    check_operand(request.operand, region.spec)
    wanted = operands.unpack_update(request.payload, carried_nbytes(nbytes, request.operand))
    siblings = tuple(context.registry.beginning_at(address) for address in wanted.siblings)
    code = check_step(request.kernel, region, siblings, wanted.parameters)
    gradient = np.frombuffer(wanted.gradient, np.uint8)
    terms = region, code, first, first + nbytes, 1, gradient, request.operand
    return Change(*terms, _NOTHING, siblings, np.array(wanted.parameters))


def _write(
    block: orders.Block, place: int, found: Change, row: orders.Block, number: int, at: int
) -> None:
    """Write a change as the order of index ``place``.

    Args:
        block: of at least ``place + 1`` orders.
        place: which one.
        found: the change.
        row: the channel's, with the ring of its answer.
        number: of the first stripe's commit; the next stripe's is the next.
        at: byte from which on it is still to be done.
    """
    region, kernel, first, limit, scale, source, operand, output, siblings, parameters = found
    extents = region.extents
    if siblings:
        extents = orders.extents_of([each.block for each in (region, *siblings)])
    orders.write_order[type(scale)](
        block.bytes,
        place * orders.ORDER_NBYTES,
        kernel,
        operand or region.dtype_code,
        output,
        extents,
        first,
        limit,
        orders.address_of(source),
        source.size,
        scale,
        0 if parameters is None else orders.address_of(parameters),
        0,
        row.address,
        number,
        at,
    )


def _answer(channel: Channel, request: Request) -> Buffer:
    """Return the answer: out of the ring itself, if it lies there in one piece.

    There it stays until the client has it. A copy is the node's until it is sent.
    """
    whole = None
    if not request.items:
        whole = channel.answers.find(request.number, request.numbers)
    if whole is None:
        parts = list(_parts(channel, request))
        if not parts:
            return b""
        copied = np.concatenate(parts)
    elif _is_moved(request):
        copied = _moved(request, request.payload, whole)
    else:
        return whole.data
    channel.unsent.add(copied)
    return copied.data


def _parts(channel: Channel, request: Request) -> Iterator[NDArray[np.uint8]]:
    """Give the answers of those commits of a change that are applied, one by one.

    Raises:
        SessionExpiredError: one is kept no longer.
        RemoteProtocolError: this is no copy of the request that was applied.
    """
    at = 0  # byte of the payload: of a narrow exchange, whose answer is as long
    done = min(request.numbers, channel.row.applied + 1 - request.number)
    numbers = range(request.number, request.number + done)
    changes: Iterable[Request | Item] = request.items or repeat(request)
    for number, one in zip(numbers, changes, strict=False):
        if one.op not in ANSWERS:
            continue
        part = channel.answers.find(number, 1)
        if part is None:
            raise SessionExpiredError(
                "the answer of this change is kept no longer", number=number, outcome="unknown"
            )
        if _is_moved(one):
            limit = at + part.size // 2
            source = one.source if isinstance(one, Item) else one.payload[at:limit]
            part = _moved(one, source, part)
        yield part
        at += part.size


def _moved(one: Request | Item, source: Buffer, old: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the operand of a narrow exchange, or of a part of one, moved.

    Raises:
        RemoteProtocolError: the operand is not as long as what the region held.
    """
    x = np.frombuffer(source, np.uint8)
    if 2 * x.size != old.size:  # C computes as many as were old
        raise RemoteProtocolError("another request was applied under this number")
    return moved(old, x, unpack_scale(one.scale, "f"), one.operand)


def _is_moved(one: Request | Item) -> bool:
    """Tell whether the operand, moved, is the answer: of a narrow exchange."""
    return one.op is Op.ELASTIC and one.operand != 0
