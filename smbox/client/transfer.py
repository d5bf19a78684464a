"""What a channel carries: transfers, which are cut into messages, one request each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from smbox.errors import RequestTimeoutError, SmboxError
from smbox.paths.threads import QueuedWork, ThreadQueue
from smbox.wire.codec import Reply, Request
from smbox.wire.messages import Body
from smbox.wire.operands import ITEM_NBYTES
from smbox.wire.ops import ANSWERS, Op


@dataclass(slots=True, eq=False, kw_only=True)
class Message(Request):
    """One request of a transfer.

    Attributes:
        limit: where its part of the transfer ends, in the transfer's units.
        copied_nbytes: of copies at the node: its answer, and what an answered batch brings.
        copies: how often it was sent.
        transfer: it; set when it is cut, as is ``first``.
        first: where its part begins.
    """

    limit: int
    copied_nbytes: int = 0
    copies: int = 0
    transfer: Transfer = field(init=False)
    first: int = field(init=False)

    @property
    def source_nbytes(self) -> int:
        """Bytes of data that it brings."""
        return len(self.payload) - ITEM_NBYTES * len(self.items)

    @property
    def zero_copy_nbytes(self) -> int:
        """Bytes that it asks for without a copy."""
        return self.nbytes if self.op is Op.LEND else 0

    @property
    def fills_ring(self) -> bool:
        """Whether the node keeps its old bytes, for a copy of the request to ask for."""
        return self.op in {Op.ELASTIC, Op.FETCH} or (
            self.op is Op.BATCH and self.copied_nbytes > 0
        )

    @property
    def before(self) -> int:
        """The number given out last before this request."""
        return self.number - 1 if self.numbers else self.number

    @property
    def needs_answer(self) -> bool:
        """Whether to know that it was applied is not enough."""
        return not self.numbers or self.op in ANSWERS

    def done(self, applied: int) -> int:
        """Count its commits that have happened, by the number applied last."""
        return max(0, min(self.numbers, applied - self.number + 1))


class Transfer(QueuedWork):
    """A verb over the wire, cut into messages, answered in order.

    All before ``at`` is answered and taken; all before ``cut`` was given to messages. What an
    interrupt leaves of ``cut``, the channel sets right when it resumes. One that is over is
    done when its outcome is known for good.

    Attributes:
        cut: see above.
        is_array_free: its channel reads its arrays no more, once it is over or has failed.
        is_change: it has an outcome, and flush tells of its failure.

    Args:
        channel: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
    """

    is_change = False

    def __init__(self, channel: ThreadQueue[Any], first: int, limit: int) -> None:
        super().__init__(channel, first, limit)
        self.cut = first
        self.is_done = first >= limit
        self.is_array_free = True

    def outcome(self) -> str:
        """Tell what is known of the effect."""
        if self.at >= self.limit:
            return "all"
        if self.is_change and self.cut > self.at:
            return "unknown"
        return "partial" if self.ranges_done() else "none"

    def facts(self) -> dict[str, object]:
        """Tell what is in the way, and which memory is in use."""
        facts = super().facts()
        if not self.is_array_free:
            facts["array"] = "still being read: do not reuse its memory"
        return facts

    # What a subclass says.

    def next_message(self) -> Message | None:
        """Make the request that begins at ``cut``; None: not before more is answered."""
        raise NotImplementedError

    def take(self, message: Message, reply: Reply) -> None:
        """Take what the reply brings; a second time, if an interrupt cut the first off."""

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """End, after taking what ``done`` commits brought before the refusal.

        It ends first: cut off by an interrupt, the rest must not be sent behind later requests.
        """
        self.fail(reply.raised())
        self.settle(message, done)
        self.rewind(self.at)

    def end_of(self, message: Message, done: int) -> int:
        """Return the unit behind the first ``done`` commits of a message, but not all."""
        return message.first + done

    # What the channel does.

    def answered(self, message: Message, reply: Reply) -> None:
        """Take the whole answer of a message, unless it was taken or nobody wants it."""
        if self.is_done:
            return
        if message.limit > self.at and not self.is_cancelled:
            self.take(message, reply)
        self.advance_to(message.limit)

    def settle(self, message: Message, done: int) -> None:
        """Note that just ``done`` commits of a message happened, and no more ever will."""
        if done:
            whole = done == message.numbers
            self.advance_to(message.limit if whole else self.end_of(message, done))

    def advance_to(self, unit: int) -> None:
        """Note that all before a unit is done."""
        self.at = max(self.at, unit)
        self.is_done = self.is_done or self.at >= (
            self.cut if self.is_cancelled else self.limit
        )

    def rewind(self, unit: int) -> None:
        """Note that nothing from a unit on is in flight."""
        self.cut = max(self.at, unit)
        self.advance_to(self.at)

    def mark_cancelled(self) -> None:
        """Send and take nothing more: the caller has left."""
        self.is_cancelled = True
        self.is_done = self.is_done or not self.is_change
        self.advance_to(self.at)

    def fail(self, error: SmboxError) -> None:
        """End with ``error``, unless it has ended."""
        if not self.is_done:
            self.error = error
            self.is_done = True


class Call(Transfer):
    """One request that is no change.

    Attributes:
        reply: the node's, when it said yes.
        copies: how often it was sent, when the reply came.

    Args:
        channel: of the thread that asks.
        op: what is asked.
        body: of a control op.
        fields: of the request's header.
    """

    def __init__(
        self, channel: ThreadQueue[Any], op: Op, body: Body | None = None, **fields: Any
    ) -> None:
        super().__init__(channel, 0, 1)
        self.reply: Reply | None = None
        self.copies = 0
        self._op = op
        self._ask = partial(Message, op, body=body, limit=1, **fields)

    def next_message(self) -> Message:
        """Make the request."""
        return self._ask()

    def take(self, message: Message, reply: Reply) -> None:
        """Keep the reply."""
        self.reply, self.copies = reply, message.copies

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """End."""
        self.copies = message.copies
        super().refused(message, reply, done)

    def answer(self, timeout_s: float) -> Reply:
        """Send the request, and wait for its reply.

        Raises:
            RequestTimeoutError: none came in time; the request is not sent again.
            SmboxError: the node said no.
        """
        try:
            self.advance(time.monotonic() + timeout_s)
        finally:
            if not self.is_done:
                self.cancel()
        if self.reply is None:
            name = self._op.name.lower()
            raise RequestTimeoutError(
                f"{name} was not answered in time",
                op=name,
                timeout_s=timeout_s,
                outcome="unknown" if self.is_begun else "none",
                **self.facts(),
            )
        return self.reply
