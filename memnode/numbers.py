"""Numbered changes, each exactly once: the rules of docs/protocol.md, "Numbers", at the node.

A change takes consecutive numbers, one for each stripe or item. Those up to the channel's
``applied`` are done; the next one is committed; a later one is a gap, which node.py tells.
So a request may be run any number of times: it goes on where it was, and answers out of the
channel's ring.

A narrow exchange is answered with its operand, moved: computed by the commit's kernel from the
ring's old bytes and the operand, so that a repeated request gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from memnode.context import Channel, Context, Handler
from smbox.errors import RemoteProtocolError, SessionExpiredError, SmboxError
from smbox.memory.commit import moved
from smbox.wire.codec import Reply, Request, refuse, reply_to
from smbox.wire.header import Buffer, unpack_scale
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS, Op

Commit: TypeAlias = Callable[[Context, Channel, Request, int], None]
"""Commit a request, but for so many of its numbers that are applied already.

Raises:
    StripeBusy: another writer holds a stripe; what was committed until then counts.
    SmboxError: refused from there on.
"""


def numbered(commit: Commit) -> Handler:
    """Make the handler of a change from what commits it."""

    def handle(context: Context, channel: Channel, request: Request) -> Reply:
        try:
            if request.number < 1 or request.numbers < 1:
                raise RemoteProtocolError("a change takes numbers", op=request.op.name)
            done = channel.row.applied + 1 - request.number
            if done < request.numbers:
                commit(context, channel, request, done)
            else:
                context.metrics.duplicates += request.numbers
            answers = request.op in ANSWERS
            return reply_to(request, _answer(channel, request) if answers else b"")
        except SmboxError as error:  # what is applied gives its answers all the same
            answers = request.op in ANSWERS and request.number > 0
            old = b"".join(part.data for part in _parts(channel, request)) if answers else b""
            return refuse(request, error, applied=channel.row.applied, old=old)

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
    if not request.items and not _is_moved(request):
        whole = channel.rings.answers(request.number, request.numbers)
        if whole is not None:
            return whole.data
    parts = list(_parts(channel, request))
    if not parts:
        return b""
    copied = np.concatenate(parts)
    channel.unsent.add(copied)
    return copied.data


def _parts(channel: Channel, request: Request) -> Iterator[NDArray[np.uint8]]:
    """Give the answers of those commits of a change that are applied, one by one.

    Raises:
        SessionExpiredError: one is kept no longer.
    """
    at = 0  # byte of the payload: of a narrow exchange, whose answer is as long
    done = min(request.numbers, channel.row.applied + 1 - request.number)
    for ahead in range(min(done, len(request.items)) if request.items else done):
        change = request.items[ahead] if request.items else request
        if change.op not in ANSWERS:
            continue
        number = request.number + ahead
        part = channel.rings.answers(number, 1)
        if part is None:
            raise SessionExpiredError(
                "the answer of this change is kept no longer", number=number, outcome="unknown"
            )
        if _is_moved(change):
            limit = at + part.size // 2
            source = change.source if isinstance(change, Item) else change.payload[at:limit]
            x, rate = np.frombuffer(source, np.uint8), unpack_scale(change.scale, "f")
            part = moved(part, x, rate, change.operand)
        yield part
        at += part.size


def _is_moved(change: Request | Item) -> bool:
    """Tell whether the operand, moved, is the answer: of a narrow exchange."""
    return change.op is Op.ELASTIC and change.operand != 0
