"""Numbered changes, each exactly once: the rules of docs/protocol.md, "Numbers", at the node.

A change takes consecutive numbers, one for each stripe or item. Those up to the channel's
``applied`` are done; the next one is committed; a later one is a gap. So a request may be run
any number of times: it goes on where it was, and answers out of the channel's ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from memnode import narrow
from memnode.channel import Channel
from memnode.context import Context, Handler
from smbox.errors import RemoteProtocolError, SmboxError
from smbox.wire.codec import Reply, Request, refuse, reply_to
from smbox.wire.header import Buffer
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, Op, carried_nbytes
from smbox.wire.status import Status

Commit: TypeAlias = Callable[[Context, Channel, Request, int], None]
"""Commit a request, but for so many of its numbers that are applied already.

Raises:
    StripeBusy: another writer holds a stripe; what was committed until then counts.
    SmboxError: refused from there on.
"""


def numbered(commit: Commit) -> Handler:
    """Make the handler of a change from what commits it."""

    def handle(context: Context, channel: Channel, request: Request) -> Reply:
        number, applied = request.number, channel.row.applied
        if number > applied + 1:
            gap = RemoteProtocolError("numbers are missing before this one", number=number)
            return refuse(request, gap, applied=applied, status=Status.GAP)
        try:
            if number < 1 or request.numbers < 1:
                raise RemoteProtocolError("a change takes numbers", op=request.op.name)
            done = applied + 1 - number
            if done < request.numbers:
                commit(context, channel, request, done)
            else:
                context.metrics.duplicates += request.numbers
            return reply_to(request, _answer(channel, request))
        except SmboxError as error:
            return _refuse(channel, request, error)

    return handle


def check_numbers(request: Request, wanted: int) -> None:
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


def _answer(channel: Channel, request: Request) -> Buffer:
    """Return the answer: out of the ring itself, if it lies there in one piece.

    There it stays until the client has it. A copy is the node's until it is sent.
    """
    if request.op not in ANSWERS:
        return b""
    if not request.items and not _is_moved(request):
        whole = channel.answers(request.number, request.numbers)
        if whole is not None:
            return whole.data
    parts = list(_parts(channel, request))
    if not parts:
        return b""
    copied = np.concatenate(parts)
    channel.unsent.add(copied)
    return copied.data


def _parts(channel: Channel, request: Request) -> Iterator[NDArray[np.uint8]]:
    """Give the answers of those commits of a change that are applied, one by one."""
    at = 0
    done = min(request.numbers, channel.row.applied + 1 - request.number)
    if request.items:
        done = min(done, len(request.items))
    for ahead in range(done):
        item = request.items[ahead] if request.items else None
        if (item or request).op not in ANSWERS:
            continue
        old = channel.answer(request.number + ahead)
        if item is not None and _is_moved(item):
            yield narrow.moved(old, item.source, item.scale, item.operand)
        elif item is None and _is_moved(request):
            begin = carried_nbytes(at, request.operand)
            end = carried_nbytes(at + old.size, request.operand)
            source = request.payload[begin:end]
            yield narrow.moved(old, source, request.scale, request.operand)
        else:
            yield old
        at += old.size


def _is_moved(change: Request | Item) -> bool:
    """Tell whether the operand, moved, is the answer: of a narrow exchange."""
    return change.op is Op.ELASTIC and change.operand != 0


def _refuse(channel: Channel, request: Request, error: SmboxError) -> Reply:
    """Refuse what is not applied; what is, gives its answers all the same."""
    kept = b""
    if request.op in ANSWERS and request.number > 0:
        kept = b"".join(part.data for part in _parts(channel, request))
    return refuse(request, error, applied=channel.row.applied, old=kept)
