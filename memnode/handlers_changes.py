"""Changes of a range: PUT, ACCUMULATE, ELASTIC, FETCH, FROM and UPDATE.

Each ends in one call of ``commit``, stripe by stripe with consecutive numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.checks import (
    check_operand,
    check_range,
    check_same_elements,
    check_siblings,
    check_source,
    check_span,
    optimizer_of,
    terms_of,
)
from memnode.context import Context
from memnode.numbers import check_numbers, numbered
from smbox.errors import AddressRangeError
from smbox.memory.commit import commit
from smbox.memory.kernels import KERNELS, KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.optimizers import OPTIMIZERS, PARAMETERS_MAX, OptimizerCode, check_parameters
from smbox.memory.orders import Back
from smbox.wire import operands
from smbox.wire.codec import Request
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, carried_nbytes, count, unit_of


class Change(NamedTuple):
    """A change that was checked against its region."""

    region: MappedRegion
    kernel: KernelCode
    first: int
    limit: int
    scale: float


def checked(context: Context, change: Request | Item, source_nbytes: int, unit: int) -> Change:
    """Check a change, of at most one ``unit`` of bytes, against its region.

    Raises:
        SmboxError: it may not run; see checks.py.
    """
    region = context.registry.locate(change.address)
    spec, first = region.spec, change.address - region.address
    code, scale = terms_of(change.op, change.kernel, spec.dtype, change.scale)
    if KERNELS[code].is_whole:
        unit = STRIPE_NBYTES
    check_range(first, change.nbytes, region.nbytes, unit)
    if change.operand:
        check_operand(change.operand, spec)
    check_source(code, spec, first, change.nbytes, source_nbytes, change.operand)
    return Change(region, code, first, first + change.nbytes, scale)


def _commit_source(context: Context, channel: Channel, request: Request, done: int) -> None:
    """PUT and its like: the operand travels with the request."""
    change = checked(context, request, len(request.payload), unit_of(request.op))
    _commit(context, channel, request, done, change, np.frombuffer(request.payload, np.uint8))


def _commit_from(context: Context, channel: Channel, request: Request, done: int) -> None:
    """FROM: the operand is another region's contents, each stripe as between two commits."""
    change = checked(context, request, request.nbytes, unit_of(request.op))
    address = operands.unpack_address(request.payload)
    source = context.registry.locate(address)
    begin = address - source.address
    check_same_elements(source.spec, change.region.spec)
    check_span(source.spec, begin, request.nbytes)
    operand = np.empty(request.nbytes, np.uint8)
    context.reader.read(source, begin, begin + request.nbytes, operand)
    _commit(context, channel, request, done, change, operand)


def _commit(
    context: Context,
    channel: Channel,
    request: Request,
    done: int,
    change: Change,
    source: NDArray[np.uint8],
) -> None:
    region, kernel, first, limit, scale = change
    check_numbers(request, count(first, limit, STRIPE_NBYTES))
    answers = request.op in ANSWERS
    answer_nbytes = min(limit - first, STRIPE_NBYTES) if answers else 0
    commit(
        context.writer,
        (region,),
        kernel,
        first,
        limit,
        source,
        scale,
        at=_begin(first, done),
        operand=request.operand,
        back=Back.OLD if answers else Back.NOTHING,
        channel=channel.block_for(request.number, request.numbers, answer_nbytes),
        number=request.number,
    )


def _commit_update(context: Context, channel: Channel, request: Request, done: int) -> None:
    """UPDATE: one step of a server-side optimizer, parameters and state in one commit."""
    region = context.registry.locate(request.address)
    first, nbytes = request.address - region.address, request.nbytes
    check_range(first, nbytes, region.nbytes)
    check_span(region.spec, first, nbytes)
    check_operand(request.operand, region.spec)
    check_numbers(request, count(first, first + nbytes, STRIPE_NBYTES))
    code = optimizer_of(request.kernel)
    wanted = operands.unpack_update(request.payload, carried_nbytes(nbytes, request.operand))
    siblings = tuple(_sibling(context, address) for address in wanted.siblings)
    check_siblings(code, region, siblings)
    commit(
        context.writer,
        (region, *siblings),
        code,
        first,
        first + nbytes,
        np.frombuffer(wanted.gradient, np.uint8),
        at=_begin(first, done),
        operand=request.operand,
        parameters=_parameters(code, wanted.parameters),
        channel=channel.block,
        number=request.number,
    )


def _sibling(context: Context, address: int) -> MappedRegion:
    sibling = context.registry.locate(address)
    if sibling.address != address:
        raise AddressRangeError("no region begins at this address", address=address)
    return sibling


def _parameters(code: OptimizerCode, given: tuple[float, ...]) -> NDArray[np.float64]:
    own = given[: len(OPTIMIZERS[code].parameters)]
    check_parameters(code, own)
    found = np.zeros(PARAMETERS_MAX)
    found[: len(own)] = own
    return found


def _begin(first: int, done: int) -> int:
    """Return the byte from which on a range is to be committed, after ``done`` stripes."""
    return (first // STRIPE_NBYTES + done) * STRIPE_NBYTES if done else first


put = accumulate = elastic = fetch = numbered(_commit_source)
take = numbered(_commit_from)
update = numbered(_commit_update)
