"""Flight: the requests in flight of a channel, with their order, numbers and credit.

The client's part of "Numbers" and "Flow control" in docs/protocol.md. Pure: no clock, no
socket. ``resume`` repairs what an interrupt leaves half done here, on two conditions: a message
is in ``messages`` before it is sent, and its reply is taken before it is removed.
"""

from __future__ import annotations

import itertools
from collections import deque

from smbox.client.transfer import Message, Transfer
from smbox.errors import RemoteProtocolError, SessionExpiredError
from smbox.wire.codec import Reply
from smbox.wire.messages import Welcome
from smbox.wire.ops import ANSWERS, Op, Status


class Flight:
    """The waiting transfers of a channel's session, and their messages in flight.

    Attributes:
        node: the node's WELCOME, with its limits; None before the first.
        ids: generates the ids of requests.
        messages: numbered messages without a reply, in order.
        unsent: those of them that must be sent on the present connection.
        waiting: transfers that need more messages.
    """

    def __init__(self) -> None:
        self.node: Welcome | None = None
        self.ids = itertools.count(1)
        self.messages: deque[Message] = deque()
        self.unsent: deque[Message] = deque()
        self.waiting: deque[Transfer] = deque()
        self._pending: Message | None = None  # made, and waits until it may be in flight
        self._next = 1  # the number of the next change
        self._credit = 0  # source bytes, from the last reply; 0: those of WELCOME

    @property
    def incarnation(self) -> int:
        """The node's; 0 before the first WELCOME."""
        return 0 if self.node is None else self.node.incarnation

    @property
    def acknowledged(self) -> int:
        """The number up to which every change has its reply."""
        first = next((message for message in self.messages if message.numbers), None)
        return (self._next if first is None else first.number) - 1

    @property
    def transfers(self) -> list[Transfer]:
        """The transfers that have not ended, in order."""
        transfers = [*(message.transfer for message in self.messages), *self.waiting]
        return list(dict.fromkeys(transfers))

    def cut_next(self) -> bool:
        """Number the next request and put it in flight; False if none may be."""
        while self.waiting:
            transfer = self.waiting[0]
            if transfer.cut >= transfer.limit or transfer.is_done or transfer.is_cancelled:
                self.waiting.popleft()
                continue
            message = self._pending
            if message is None or message.transfer is not transfer:
                message = transfer.next_message()
            if message is None:
                return False
            message.transfer, message.first = transfer, transfer.cut
            if self.messages and not self._may_fly(message):
                self._pending = message
                return False
            message.request = next(self.ids)
            message.number = self._next if message.numbers else self._next - 1
            if message.op is not Op.WAIT:
                message.version = self.acknowledged
            self._pending = None
            self.messages.append(message)
            self.unsent.append(message)
            transfer.cut = message.limit
            self._next += message.numbers
            return True
        return False

    def _may_fly(self, message: Message) -> bool:
        """Return True if this message too may be in flight; one always may.

        A change waits for the replies to all earlier reads: a read that is sent again must not
        see it. The node's limits are the other reason to wait.
        """
        if message.numbers and any(
            not each.numbers and each.op is not Op.WAIT for each in self.messages
        ):
            return False
        node, flying = self.node, [*self.messages, message]
        if node is None or len(flying) > node.window:
            return False
        sources_nbytes = self._credit or node.sources_nbytes
        if message.source_nbytes and sum(m.source_nbytes for m in flying) > sources_nbytes:
            return False
        if message.copied_nbytes and sum(m.copied_nbytes for m in flying) > node.answers_nbytes:
            return False
        if message.lent_nbytes and sum(m.lent_nbytes for m in flying) > node.lent_nbytes:
            return False
        last = self._next + message.numbers - 1
        return not message.fills_ring or last <= self.acknowledged + node.ring_entries

    def find(self, reply: Reply) -> tuple[Message | None, bool]:
        """Return the message that a reply answers, and whether it is the next one due."""
        is_next = True
        for message in self.messages:
            if message.request == reply.request and message.op is reply.op:
                return message, is_next or message.op is Op.WAIT
            is_next = is_next and message.op is Op.WAIT
        return None, False

    def answer(self, message: Message, reply: Reply) -> None:
        """Give a reply to its message, and remove the message.

        After a refused change, all later messages get new numbers.
        """
        transfer, messages, done = message.transfer, self.messages, message.numbers
        if reply.numbers:
            self._credit = reply.numbers << 20
        if reply.status is Status.OK:
            asked = message.nbytes, message.operand
            if message.op in ANSWERS and (reply.nbytes, reply.operand) != asked:
                raise RemoteProtocolError("the reply is for another range", nbytes=reply.nbytes)
            transfer.answered(message, reply)
        else:
            done = 0 if reply.error is None else message.done(reply.error.applied)
            if not transfer.is_done:
                transfer.refused(message, reply, done)
        if done < message.numbers:  # the node answers GAP to all messages behind it
            self._next = message.number + done
            before = (m for m in messages if m.before < self._next and m is not message)
            self._recut(deque(before))
        else:
            messages.remove(message)  # the first, but for a WAIT
        if not self.messages:
            self._credit = 0  # other channels may use the credit meanwhile

    def _recut(self, kept: deque[Message]) -> None:
        """Drop all other messages; what was in them is cut again, in the same order.

        The transfers wait before the messages are dropped: an interrupt leaves a transfer in
        both places, not in none.
        """
        self.waiting = deque(self.transfers)
        self.messages = kept
        for transfer in self.waiting:
            ends = (each.limit for each in self.messages if each.transfer is transfer)
            transfer.rewind(max(ends, default=transfer.at))
        self._pending = None
        self.unsent = deque(message for message in self.unsent if message in self.messages)

    def resume(self, node: Welcome) -> None:
        """Settle what the node has applied, and queue the rest.

        Raises:
            SessionExpiredError: it lacks acknowledged changes, or does not know this channel.
        """
        is_due = any(message.numbers for message in self.messages)
        if self.node is None or not (is_due or node.resumed):
            self._next = node.applied + 1
        elif not (node.resumed and self.acknowledged <= node.applied < self._next):
            raise SessionExpiredError("the node has forgotten this client", outcome="unknown")
        self.node = node
        self._settle(node.applied)

    def _settle(self, applied: int) -> None:
        """Settle the applied messages; give new numbers to the rest, and queue them."""
        number = self.acknowledged + 1
        kept: deque[Message] = deque()
        for message in self.messages:
            transfer, done = message.transfer, message.done(applied)
            is_known = 0 < done == message.numbers and message.op not in ANSWERS
            is_taken = message.first < transfer.at or transfer.is_done
            if is_taken or is_known or transfer.is_cancelled:
                transfer.settle(message, done)
                number = message.number + done if done else number
            else:
                if not done:  # gets a number behind all applied ones
                    number = max(number, applied + 1)
                    message.number = number if message.numbers else number - 1
                number = message.number + (message.numbers or 1)
                kept.append(message)
        self._next = max(number, applied + 1)
        self._recut(kept)
        self.unsent = deque(kept)
