"""What a channel does under its lock: connect, send, receive, judge, and resume.

Whatever is wrong with a connection (a lost reply, silence, a node that does not know it) has
one answer: the socket is dropped. The next ``send`` connects anew, and the node's welcome
settles what was in flight; see flight.py.
"""

from __future__ import annotations

import time
from typing import Any, Final

from smbox.client.connection import Connection, Peer
from smbox.client.flight import Flight
from smbox.client.message import Transfer
from smbox.client.patience import Patience
from smbox.config import WINDOW_MAX, ClientConfig
from smbox.errors import SessionExpiredError, SmboxError
from smbox.transports.base import Frame, OpenTransport, Transport
from smbox.wire.codec import Reply, decode_reply, encode_request
from smbox.wire.ops import Op
from smbox.wire.status import Status

SLICE_S: Final = 0.05
"""How long one pass keeps other threads from the channel."""


class Engine:
    """Used by one thread at a time; the Args are a channel's.

    Attributes:
        answered: how many requests have been answered.
        unseen: what a change failed with that nobody was told of.
        parked: what the node said last of the stripe that the oldest request waits for.
    """

    def __init__(
        self, number: int, open_transport: OpenTransport, peer: Peer, config: ClientConfig
    ) -> None:
        self.answered = 0
        self.unseen: SmboxError | None = None
        self.parked: dict[str, Any] = {}
        self.connection = Connection(number, open_transport, peer)
        self.flight = Flight()
        self.patience = Patience(config)

    def add(self, transfer: Transfer) -> None:
        """Queue a transfer."""
        if self.flight.is_empty:
            now_s = time.monotonic()
            if self.patience.is_stale(now_s):
                self.connection.lose()
            self.patience.expect(now_s)
        transfer.is_begun = True
        self.flight.add(transfer)

    def exchange(self, transfer: Transfer, deadline_s: float) -> None:
        """Send and receive until the transfer is done, the slice is over, or all is silent."""
        now_s = time.monotonic()
        limit_s = min(deadline_s, now_s + SLICE_S)
        late, patience = 0, self.patience
        while True:
            transport = self.send()
            is_greeted = self.connection.is_greeted
            if transfer.is_done:
                return
            left_s = limit_s - now_s
            if left_s <= 0:
                late += 1
                if late > WINDOW_MAX:
                    return
                left_s = 0.0
            frames = transport.receive(min(left_s, patience.left_s(is_greeted=is_greeted)))
            before_s, now_s = now_s, time.monotonic()
            if frames is not None:
                patience.heard(now_s - before_s, now_s, is_greeted=is_greeted)
                self._hear(frames)
            elif patience.is_over(now_s - before_s, is_greeted=is_greeted):
                self.connection.lose()
            elif not left_s:
                return

    def send(self) -> Transport:
        """Connect, or send all that there is room for; returns the socket."""
        connection, flight = self.connection, self.flight
        transport = connection.transport
        if transport is None:
            return connection.open(next(flight.ids))
        if connection.is_greeted:
            unsent = flight.unsent
            while unsent or flight.cut_next():
                message = unsent[0]
                message.generation = connection.generation
                if not transport.send(encode_request(message), lent=True):
                    break
                message.copies += 1
                unsent.popleft()
        return transport

    def _hear(self, frames: list[Frame]) -> None:
        reply = decode_reply(frames)
        if reply.status is Status.NO_SESSION:
            self.connection.lose()
            return
        if reply.op is Op.HELLO:
            self._greet(reply)
            return
        message, is_next = self.flight.find(reply)
        if message is None or reply.number != message.number:
            return  # to an earlier copy, of another number
        if reply.status is Status.PARKED:
            self.parked = {} if reply.error is None else reply.error.facts
        elif reply.status is Status.GAP:
            if message.before <= self.flight.acknowledged:
                raise SessionExpiredError(
                    "the node lost changes that it had acknowledged", outcome="unknown"
                )
            self.connection.lose()  # something before it was lost on its way
        elif reply.status is Status.SESSION_EXPIRED:
            raise SessionExpiredError("the node has ended this session", outcome="unknown")
        elif not is_next:
            self.connection.lose()  # the reply to something before it was lost
        else:
            self.answered += 1
            self.parked = {}
            self.flight.answer(message, reply)
            transfer = message.transfer
            if transfer.is_change and transfer.error is not None and not transfer.is_over:
                self.unseen = self.unseen or transfer.error

    def _greet(self, reply: Reply) -> None:
        """Resume: settle by ``applied`` what was in flight, and queue the rest."""
        flight = self.flight
        self.parked = {}
        found = self.connection.welcome(
            reply, is_known=flight.node is not None, is_needed=bool(flight.messages)
        )
        if found is not None:
            flight.resume(found)
            self.connection.resumed()

    def fail(self, error: SmboxError) -> None:
        """End all that is under way: the session cannot go on; the next begins a new one."""
        for transfer in self.flight.under_way:
            if transfer.is_change and not transfer.is_done and not transfer.is_over:
                self.unseen = self.unseen or error
            transfer.fail(error)
        self.flight.clear()
        self.connection.lose()
