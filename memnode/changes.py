"""Changes: PUT, ACCUMULATE, ELASTIC, FETCH, FROM, UPDATE and BATCH.

Each ends in one native call, stripe by stripe (or item by item) with consecutive numbers; each
of these is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.checks import (
    check_elements,
    check_operand,
    check_range,
    check_siblings,
    check_source,
    check_span,
    terms_of,
)
from memnode.context import Context
from memnode.numbers import check_numbers, numbered
from smbox.errors import RemoteProtocolError, SmboxError
from smbox.memory import orders
from smbox.memory.commit import commit, run_orders
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
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, carried_nbytes, count, unit_of


class Change(NamedTuple):
    """A change that was checked against its region."""

    region: MappedRegion
    kernel: KernelCode | OptimizerCode
    first: int
    limit: int
    scale: float


@numbered
def change(context: Context, channel: Channel, request: Request, done: int) -> None:
    """PUT, ACCUMULATE, ELASTIC, FETCH: the operand travels with the request."""
    found = _checked(context, request, unit_of(request.op))
    _commit(context, channel, request, done, found, np.frombuffer(request.payload, np.uint8))


@numbered
def take(context: Context, channel: Channel, request: Request, done: int) -> None:
    """FROM: the operand is another region's contents, each stripe as between two commits."""
    found = _checked(context, request, unit_of(request.op))
    address = operands.unpack_address(request.payload)
    source = context.registry.locate(address)
    begin = address - source.address
    check_source(found.region.spec, source.spec, begin, request.nbytes)
    operand = np.empty(request.nbytes, np.uint8)
    context.reader.read(source, begin, begin + request.nbytes, operand)
    _commit(context, channel, request, done, found, operand)


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
    found = Change(region, code, first, first + nbytes, 1)
    gradient = np.frombuffer(wanted.gradient, np.uint8)
    _commit(context, channel, request, done, found, gradient, siblings, parameters)


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
    sources = [np.frombuffer(item.source, np.uint8) for item in items[: len(changes)]]
    for place, (found, item) in enumerate(zip(changes, items, strict=False)):
        region, kernel, first, limit, scale = found
        orders.write_order[type(scale)](
            block.bytes,
            place * orders.ORDER_NBYTES,
            kernel,
            item.operand or region.dtype_code,
            orders.Back.OLD if item.op in ANSWERS else orders.Back.NOTHING,
            region.extents,
            first,
            limit,
            orders.address_of(sources[place]),
            len(item.source),
            scale,
            0,
            0,
            row.address,
            request.number + done + place,
            first,
        )
    regions = [(found.region,) for found in changes]
    run_orders(context.writer, block, regions, len(request.payload))
    if refusal is not None:
        raise refusal


def _checked_items(
    context: Context, items: Sequence[Item]
) -> tuple[list[Change], SmboxError | None]:
    """Check items up to the first that may not run; return the others, and its error."""
    changes: list[Change] = []
    for item in items:
        try:
            changes.append(_checked(context, item, STRIPE_NBYTES))
        except SmboxError as error:
            return changes, error
    return changes, None


def _checked(context: Context, asked: Request | Item, unit: int) -> Change:
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
    return Change(region, code, first, first + nbytes, scale)


def _commit(
    context: Context,
    channel: Channel,
    request: Request,
    done: int,
    found: Change,
    source: NDArray[np.uint8],
    siblings: tuple[MappedRegion, ...] = (),
    parameters: NDArray[np.float64] | None = None,
) -> None:
    region, kernel, first, limit, scale = found
    check_numbers(request, count(first, limit, STRIPE_NBYTES))
    block, back = channel.block, orders.Back.NOTHING
    if request.op in ANSWERS:
        answer_nbytes = min(limit - first, STRIPE_NBYTES)
        ring = channel.rings.ring_for(request.number, request.numbers, answer_nbytes)
        block, back = ring.block, orders.Back.OLD
    commit(
        context.writer,
        (region, *siblings),
        kernel,
        first,
        limit,
        source,
        scale,
        at=max(first, (first // STRIPE_NBYTES + done) * STRIPE_NBYTES),
        operand=request.operand,
        back=back,
        parameters=parameters,
        channel=block,
        number=request.number,
    )
