"""Handler of the changes, exactly once: PUT, ACCUMULATE, ELASTIC, FETCH, FROM, UPDATE, BATCH.

docs/protocol.md, "Numbers", has the rules. A change takes consecutive numbers, one for each
stripe or item. Each number is a commit; one native call executes all of them. Numbers up to the
channel's ``applied`` are done already, and the next one is committed; node.py refuses a higher
one as a gap. So a request may be run any number of times: it continues after its last commit,
and is answered from the channel's ring.

The answer to a narrow exchange is its moved operand; that to all others, the old bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.checks import check_barrier, check_range, check_step, checked_kernel
from memnode.context import Channel, Context, Outcome, Park
from memnode.reads import range_of, source_of
from smbox.errors import RemoteProtocolError, SessionExpiredError, SmboxError, SystemLimitError
from smbox.memory import orders
from smbox.memory.commit import run_orders
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.wire import operands
from smbox.wire.codec import Request, refuse, reply_to
from smbox.wire.header import Buffer
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, Op, answer_nbytes, carried_nbytes, count, unit_of

_NOTHING: Final = orders.Output.NOTHING  # a look-up in the class takes longer
_OLD: Final = orders.Output.OLD
_MOVED: Final = orders.Output.MOVED


class Checked(NamedTuple):
    """A checked change, from byte ``first`` of a region's data on.

    ``source`` must live as long as the order that has its address.
    """

    asked: Request | Item
    region: MappedRegion
    first: int
    source: NDArray[np.uint8]
    output: orders.Output
    siblings: tuple[MappedRegion, ...] = ()
    parameters: NDArray[np.float64] | None = None


def change(context: Context, channel: Channel, request: Request) -> Outcome:
    """Execute the commits of a change that are not applied yet, and answer the entire change.

    Park the channel as long as a limit of the system keeps the node from the answers of applied
    commits: a refusal would tell the client that nothing was changed.

    Raises:
        StripeBusy: another writer holds a stripe; earlier commits of the change are applied.
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
        answer = _answer(channel, request) if answers else b""
        if done > 0 and answers and len(answer) != _answer_nbytes(request):
            raise RemoteProtocolError("another request was applied under this number")
        return reply_to(request, answer)
    except SmboxError as error:  # the reply carries the answers of the applied commits
        try:
            parts = list(_parts(channel, request)) if answers and request.number > 0 else []
        except SystemLimitError:
            return Park.BUSY
        if sum(part.size for part in parts) > _answer_nbytes(request):
            parts = []  # those of another request, which may be as long as the ring
        old = b"".join(part.data for part in parts)
        return refuse(request, error, applied=channel.row.applied, old=old)


def _commit_range(context: Context, channel: Channel, request: Request, done: int) -> None:
    """Commit the stripes of a range that are not applied."""
    if request.op is Op.UPDATE:
        checked = _checked_update(context, request)
    elif request.op is Op.FROM:
        checked = _checked_from(context, request)
    else:
        checked = _checked(context, request, unit_of(request.op), request.payload)
    first, writer = checked.first, context.memory.writer
    limit = first + request.nbytes
    _check_numbers(request, count(first, limit, STRIPE_NBYTES))
    block = channel.block
    if checked.output:
        nbytes = min(limit - first, STRIPE_NBYTES)
        block = channel.answers.block_for(answer_nbytes(request.op, nbytes, request.operand))
    at = max(first, (first // STRIPE_NBYTES + done) * STRIPE_NBYTES)
    _write(writer.order, 0, checked, block, request.number, at)
    run_orders(writer, writer.order, [(checked.region, *checked.siblings)], limit - first)


def _commit_items(context: Context, channel: Channel, request: Request, done: int) -> None:
    """Commit the items of a BATCH that are not applied, up to the first refused one."""
    _check_numbers(request, len(request.items))
    changes: list[Checked] = []
    refusal: SmboxError | None = None
    for item in request.items[done:]:
        try:
            changes.append(_checked(context, item, STRIPE_NBYTES, item.source))
        except SmboxError as error:
            refusal = error
            break
    checked = request.items[done : done + len(changes)]
    longest = max((item.answer_nbytes for item in checked), default=0)
    row = channel.answers.block_for(longest) if longest else channel.block
    block = orders.Block(len(changes) * orders.ORDER_NBYTES)
    for place, each in enumerate(changes):
        _write(block, place, each, row, request.number + done + place, each.first)
    regions = [(each.region,) for each in changes]
    run_orders(context.memory.writer, block, regions, len(request.payload))
    if refusal is not None:
        raise refusal


def _check_numbers(request: Request, expected: int) -> None:
    """Check that a change takes one number for each stripe or item.

    Raises:
        RemoteProtocolError: it does not.
    """
    if request.numbers != expected:
        raise RemoteProtocolError(
            "a change takes one number for each stripe it touches, or each item",
            numbers=request.numbers,
            wanted=expected,
        )


def _checked(context: Context, asked: Request | Item, unit: int, source: Buffer) -> Checked:
    """Check a change of at most ``unit`` bytes against its region.

    Raises:
        SmboxError: a check of checks.py failed.
    """
    region = context.registry.locate(asked.address)
    first, nbytes = asked.address - region.address, asked.nbytes
    code = checked_kernel(asked.op, asked.kernel, region.dtype_code, asked.scale)
    check_range(first, nbytes, region.nbytes, STRIPE_NBYTES if KERNELS[code].is_whole else unit)
    check_barrier(code, region.spec, nbytes)
    output = _OLD if asked.op in ANSWERS else _NOTHING
    if asked.operand and asked.op is Op.ELASTIC:
        output = _MOVED
    return Checked(asked, region, first, np.frombuffer(source, np.uint8), output)


def _checked_from(context: Context, request: Request) -> Checked:
    """Check a FROM and read its operand, a range of another region, stripe by stripe."""
    checked = _checked(context, request, unit_of(request.op), b"")
    source, begin = source_of(context, request, checked.region.spec)
    operand = np.empty(request.nbytes, np.uint8)
    context.reader.read(source, begin, begin + request.nbytes, operand)
    return checked._replace(source=operand)


def _checked_update(context: Context, request: Request) -> Checked:
    """Check an UPDATE: a step of an optimizer, with parameters and state in one commit."""
    region, first, _ = range_of(context, request)
    gradient_nbytes = carried_nbytes(request.nbytes, request.operand)
    update = operands.unpack_update(request.payload, gradient_nbytes)
    siblings = tuple(context.registry.at_address(address) for address in update.siblings)
    check_step(request.kernel, region, siblings, update.parameters)
    gradient, parameters = np.frombuffer(update.gradient, np.uint8), np.array(update.parameters)
    return Checked(request, region, first, gradient, _NOTHING, siblings, parameters)


def _write(
    block: orders.Block, place: int, checked: Checked, row: orders.Block, number: int, at: int
) -> None:
    """Write the order of a change.

    Args:
        block: of at least ``place + 1`` orders.
        place: index of the order in the block.
        checked: the change.
        row: the channel's row, with the ring for its answer.
        number: of the commit of the first stripe; later stripes take the following ones.
        at: byte at which the change starts or continues.
    """
    asked, region, first, source, output, siblings, parameters = checked
    extents = region.extents
    if siblings:
        extents = orders.extents_of([each.block for each in (region, *siblings)])
    orders.write_order(
        block.bytes,
        place * orders.ORDER_NBYTES,
        asked.kernel,
        asked.operand or region.dtype_code,
        output,
        extents,
        first,
        first + asked.nbytes,
        orders.address_of(source),
        source.size,
        asked.scale,
        0 if parameters is None else orders.address_of(parameters),
        0,
        row.address,
        number,
        at,
    )


def _answer(channel: Channel, request: Request) -> Buffer:
    """Return the answer: a view of the ring if it is contiguous there, else a copy.

    The ring keeps the answer until the client has acknowledged it.
    """
    if not request.items:
        whole = channel.answers.find(request.number, request.numbers)
        if whole is not None:
            return whole.data
    parts = list(_parts(channel, request))
    if not parts:
        return b""
    return channel.unsent.add(np.concatenate(parts))


def _answer_nbytes(request: Request) -> int:
    """Return the length of the answer to a change."""
    if request.items:
        return sum(item.answer_nbytes for item in request.items)
    return answer_nbytes(request.op, request.nbytes, request.operand)


def _parts(channel: Channel, request: Request) -> Iterator[NDArray[np.uint8]]:
    """Yield the answer of each applied commit of a change.

    Raises:
        SessionExpiredError: the ring does not keep an answer any more.
    """
    done = min(request.numbers, channel.row.applied + 1 - request.number)
    numbers = range(request.number, request.number + done)
    changes: Iterable[Request | Item] = request.items or repeat(request)
    for number, one in zip(numbers, changes, strict=False):
        if one.op not in ANSWERS:
            continue
        part = channel.answers.find(number, 1)
        if part is None:
            raise SessionExpiredError(
                "the node no longer keeps the answer of this change",
                number=number,
                outcome="unknown",
            )
        yield part
