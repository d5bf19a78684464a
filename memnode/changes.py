"""Changes: PUT, ACCUMULATE, ELASTIC, FETCH, FROM, UPDATE and BATCH.

Each ends in one native call, stripe by stripe (or item by item) with consecutive numbers; each
of these is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.checks import (
    check_elements,
    check_operand,
    check_range,
    check_siblings,
    check_source,
    check_span,
    terms_of,
)
from memnode.context import Channel, Context
from memnode.numbers import check_numbers, numbered
from smbox.errors import RemoteProtocolError, SmboxError
from smbox.memory import orders
from smbox.memory.commit import run_orders
from smbox.memory.kernels import (
    KERNELS,
    OPTIMIZERS,
    PARAMETERS_MAX,
    KernelCode,
    OptimizerCode,
    check_parameters,
)
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.wire import operands
from smbox.wire.codec import Request
from smbox.wire.header import Buffer
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, carried_nbytes, count, unit_of

_NOTHING: Final = orders.Back.NOTHING  # to look a member up in its class takes longer
_OLD: Final = orders.Back.OLD


class Change(NamedTuple):
    """A change that was checked against its region; ``source`` is kept as long as its order."""

    region: MappedRegion
    kernel: KernelCode | OptimizerCode
    first: int
    limit: int
    scale: float
    source: NDArray[np.uint8]
    operand: int
    back: orders.Back
    siblings: tuple[MappedRegion, ...] = ()
    parameters: NDArray[np.float64] | None = None


@numbered
def change(context: Context, channel: Channel, request: Request, done: int) -> None:
    """PUT, ACCUMULATE, ELASTIC, FETCH: the operand travels with the request."""
    found = _checked(context, request, unit_of(request.op), request.payload)
    _commit(context, channel, request, done, found)


@numbered
def take(context: Context, channel: Channel, request: Request, done: int) -> None:
    """FROM: the operand is another region's contents, each stripe as between two commits."""
    found = _checked(context, request, unit_of(request.op), b"")
    address = operands.unpack_address(request.payload)
    source = context.registry.locate(address)
    begin = address - source.address
    check_source(found.region.spec, source.spec, begin, request.nbytes)
    operand = np.empty(request.nbytes, np.uint8)
    context.reader.read(source, begin, begin + request.nbytes, operand)
    _commit(context, channel, request, done, found._replace(source=operand))


@numbered
def update(context: Context, channel: Channel, request: Request, done: int) -> None:
    """UPDATE: one step of a server-side optimizer, parameters and state in one commit."""
    region = context.registry.locate(request.address)
    first, nbytes = request.address - region.address, request.nbytes
    check_range(first, nbytes, region.nbytes)
    check_span(region.spec, first, nbytes)
    check_operand(request.operand, region.spec)
    try:
        code = OptimizerCode(request.kernel)
    except ValueError as error:
        raise RemoteProtocolError("no such optimizer", kernel=request.kernel) from error
    wanted = operands.unpack_update(request.payload, carried_nbytes(nbytes, request.operand))
    siblings = tuple(context.registry.beginning_at(address) for address in wanted.siblings)
    check_siblings(code, region, siblings)
    own = wanted.parameters[: len(OPTIMIZERS[code].parameters)]
    check_parameters(code, own)
    parameters = np.zeros(PARAMETERS_MAX)
    parameters[: len(own)] = own
    gradient = np.frombuffer(wanted.gradient, np.uint8)
    terms = region, code, first, first + nbytes, 1, gradient, request.operand
    found = Change(*terms, orders.Back.NOTHING, siblings, parameters)
    _commit(context, channel, request, done, found)


@numbered
def batch(context: Context, channel: Channel, request: Request, done: int) -> None:
    """BATCH: commit the items that are not done, up to the first that is refused."""
    check_numbers(request, len(request.items))
    items = request.items[done:]
    changes, refusal = _checked_items(context, items)
    answering = [min(item.nbytes, STRIPE_NBYTES) for item in items if item.op in ANSWERS]
    row = channel.block
    if any(answering):
        row = channel.rings.ring_for(request.number, request.numbers, max(answering)).block
    block = orders.Block(len(changes) * orders.ORDER_NBYTES)
    for place, found in enumerate(changes):
        _write(block, place, found, row, request.number + done + place, found.first)
    regions = [(found.region,) for found in changes]
    run_orders(context.memory.writer, block, regions, len(request.payload))
    if refusal is not None:
        raise refusal


def _checked_items(
    context: Context, items: Sequence[Item]
) -> tuple[list[Change], SmboxError | None]:
    """Check items up to the first that may not run; return the others, and its error."""
    changes: list[Change] = []
    for item in items:
        try:
            changes.append(_checked(context, item, STRIPE_NBYTES, item.source))
        except SmboxError as error:
            return changes, error
    return changes, None


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
    back = _OLD if asked.op in ANSWERS else _NOTHING
    array = np.frombuffer(source, np.uint8)
    return Change(region, code, first, first + nbytes, scale, array, asked.operand, back)


def _commit(
    context: Context, channel: Channel, request: Request, done: int, found: Change
) -> None:
    first, limit, writer = found.first, found.limit, context.memory.writer
    check_numbers(request, count(first, limit, STRIPE_NBYTES))
    block = channel.block
    if found.back:
        answer_nbytes = min(limit - first, STRIPE_NBYTES)
        block = channel.rings.ring_for(request.number, request.numbers, answer_nbytes).block
    at = max(first, (first // STRIPE_NBYTES + done) * STRIPE_NBYTES)
    _write(writer.order, 0, found, block, request.number, at)
    run_orders(writer, writer.order, [(found.region, *found.siblings)], limit - first)


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
    region, kernel, first, limit, scale, source, operand, back, siblings, parameters = found
    extents = region.extents
    if siblings:
        extents = orders.extents_of([each.block for each in (region, *siblings)])
    orders.write_order[type(scale)](
        block.bytes,
        place * orders.ORDER_NBYTES,
        kernel,
        operand or region.dtype_code,
        back,
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
