"""Transfers: requests over the wire, each sent as one or more messages."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from smbox.errors import RemoteProtocolError, RequestTimeoutError, SmboxError
from smbox.paths.threads import QueuedWork, ThreadQueue
from smbox.wire.codec import Reply, Request
from smbox.wire.header import Buffer
from smbox.wire.messages import Body
from smbox.wire.operands import ITEM_NBYTES
from smbox.wire.ops import Op


class Message(Request, eq=False, kw_only=True):
    """A message to the node: one request of a transfer.

    Attributes:
        limit: behind its last unit of the transfer.
        copied_nbytes: bytes that the node copies for it: the reply, and the sources of a batch
            with a reply.
        copies: how often it was sent.
        incarnation: of the node that said first that it works on it; 0: none has.
        transfer: set when it is put in flight, as is ``first``.
        first: its first unit.
    """

    limit: int
    copied_nbytes: int = 0
    copies: int = 0
    incarnation: int = 0
    transfer: Transfer = cast("Transfer", None)
    first: int = 0

    @property
    def source_nbytes(self) -> int:
        """The bytes of operands that it carries."""
        return len(self.payload) - ITEM_NBYTES * len(self.items)

    @property
    def lent_nbytes(self) -> int:
        """The bytes that it requests without a copy."""
        return self.nbytes if self.op is Op.LEND else 0

    @property
    def fills_ring(self) -> bool:
        """Return True if the node keeps the answer, for the reply to a repeated request."""
        return self.op in {Op.ELASTIC, Op.FETCH} or (
            self.op is Op.BATCH and self.copied_nbytes > 0
        )

    @property
    def before(self) -> int:
        """The last number assigned before this request."""
        return self.number - 1 if self.numbers else self.number

    def done(self, applied: int) -> int:
        """Return how many of its commits have happened, given the last number applied."""
        return max(0, min(self.numbers, applied - self.number + 1))


class Transfer(QueuedWork):
    """A request over the wire, split into messages that are answered in order.

    The replies to all units before ``at`` have been taken; all units before ``cut`` are in
    messages. After an interrupt the channel corrects ``cut`` when it resumes. A cancelled
    transfer is done when its outcome is final.

    Attributes:
        cut: see above.
        is_array_free: the channel does not read the arrays of the cancelled or failed transfer.
        late_error: an error that it fails with once all its units are done.

    Args:
        channel: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
    """

    def __init__(self, channel: ThreadQueue[Any], first: int, limit: int) -> None:
        super().__init__(channel, first, limit)
        self.cut = first
        self.is_done = first >= limit
        self.is_array_free = True
        self.late_error: SmboxError | None = None

    def outcome(self) -> str:
        """Return the known outcome; see ``Work``."""
        if self.at >= self.limit:
            return "all"
        if self.is_change and self.cut > self.at:
            return "unknown"
        return "partial" if self.ranges_done() else "none"

    def facts(self) -> dict[str, object]:
        """Return what blocks the transfer, and whether its array is still in use."""
        facts = super().facts()
        if not self.is_array_free:
            facts["array"] = "still being read: do not reuse its memory"
        return facts

    # Implemented by subclasses.

    def next_message(self) -> Message | None:
        """Make the request that begins at ``cut``; None before more replies have come."""
        raise NotImplementedError

    def take(self, message: Message, reply: Reply) -> None:
        """Take the contents of a reply; called again if an interrupt cut the first call off."""

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """Fail; ``done`` commits happened before the refusal.

        It fails first: after an interrupt the rest must not be sent behind later requests.
        """
        self.fail(reply.to_error())
        self.settle(message, done)
        self.rewind(self.at)

    def end_of(self, message: Message, done: int) -> int:
        """Return the unit behind the first ``done`` commits of a message."""
        return message.first + done

    # Called by the channel.

    def answered(self, message: Message, reply: Reply) -> None:
        """Take a whole reply, unless it was taken or the transfer is cancelled."""
        if self.is_done:
            return
        if message.limit > self.at and not self.is_cancelled:
            self.take(message, reply)
        self.advance_to(message.limit)

    def settle(self, message: Message, done: int) -> None:
        """Note that exactly ``done`` commits of a message happened, and no more will."""
        if done:
            self.advance_to(self.end_of(message, done))

    def advance_to(self, unit: int) -> None:
        """Note that all units before one are done."""
        if self.late_error is not None and unit >= self.limit:
            self.fail(self.late_error)
        self.at = max(self.at, unit)
        self.is_done = self.is_done or self.at >= (
            self.cut if self.is_cancelled else self.limit
        )

    def rewind(self, unit: int) -> None:
        """Note that no message in flight has this unit or a later one."""
        self.cut = max(self.at, unit)
        self.advance_to(self.at)

    def mark_cancelled(self) -> None:
        """Send and take nothing more."""
        self.is_cancelled = True
        self.is_done = self.is_done or not self.is_change
        self.advance_to(self.at)


def exact_bytes(payload: Buffer, nbytes: int) -> NDArray[np.uint8]:
    """Return the bytes of a reply; RemoteProtocolError if they are not as many as asked for."""
    if len(payload) != nbytes:
        raise RemoteProtocolError(
            "the reply has another length than the range", given=len(payload), nbytes=nbytes
        )
    return np.frombuffer(payload, np.uint8)


class Call(Transfer):
    """One request that is not a change.

    Attributes:
        message: the request, which counts its copies.
        reply: of the node, if it accepted the request.

    Args:
        channel: of the calling thread.
        op: of the request.
        body: of a control op.
        fields: of the request's header.
    """

    def __init__(
        self, channel: ThreadQueue[Any], op: Op, body: Body | None = None, **fields: Any
    ) -> None:
        super().__init__(channel, 0, 1)
        self.message = Message(op, body=body, limit=1, **fields)
        self.reply: Reply | None = None

    def next_message(self) -> Message:
        """Return the request."""
        return self.message

    def take(self, message: Message, reply: Reply) -> None:  # noqa: ARG002 - it has one
        """Store the reply."""
        self.reply = reply

    def answer(self, timeout_s: float, *, restarts: bool = False) -> Reply:
        """Send the request and wait for its reply.

        Args:
            timeout_s: seconds to wait.
            restarts: restart the timeout as long as the node works on the request.

        Raises:
            RequestTimeoutError: none came in time; the request is not sent again.
            SmboxError: the node refused the request.
        """
        try:
            self.drive(timeout_s, restarts=restarts)
        finally:
            if not self.is_done:
                self.cancel()
        if self.reply is None:
            name = self.message.op.name.lower()
            raise RequestTimeoutError(
                f"no reply to {name} in time",
                op=name,
                timeout_s=timeout_s,
                outcome="unknown" if self.is_begun else "none",
                **self.facts(),
            )
        return self.reply
