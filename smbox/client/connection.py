"""The socket of a channel: one generation after another, and the memory that old ones read."""

from __future__ import annotations

import time
from typing import Final, Protocol

from smbox.errors import (
    AccessDeniedError,
    LimitError,
    NodeStoppingError,
    SessionExpiredError,
    SmboxError,
)
from smbox.transports.base import OpenTransport, Transport
from smbox.wire.codec import Reply, Request, decode_reply, encode_request
from smbox.wire.messages import Empty, Hello, Welcome
from smbox.wire.ops import Op

FAREWELL_S: Final = 0.5


class Peer(Protocol):
    """Who the client is, and which memory it has come to know."""

    def hello(self, channel: int, generation: int) -> Hello:
        """Word the greeting of a connection."""

    def admit(self, channel: int, welcome: Welcome) -> None:
        """Check that this is the memory that the client knows; PeerLostError."""


class Connection:
    """At most one socket; each that is opened has the next generation.

    Attributes:
        transport: the socket; None: to be opened.
        generation: of the last one opened.
        is_greeted: the node has welcomed it.

    Args:
        number: of the channel.
        open_transport: opens a fresh connection to the node.
        peer: words the greetings.
    """

    def __init__(self, number: int, open_transport: OpenTransport, peer: Peer) -> None:
        self.transport: Transport | None = None
        self.generation = 0
        self.is_greeted = False
        self._number = number
        self._open_transport = open_transport
        self._peer = peer
        self._hello_id = 0
        self._left: list[Transport] = []  # closed, and maybe still reading lent memory

    def open(self, request_id: int) -> Transport:
        """Open a socket, on which the greeting is the first message."""
        self.generation += 1
        self._hello_id = request_id
        transport = self.transport = self._open_transport()
        body = self._peer.hello(self._number, self.generation)
        hello = Request(Op.HELLO, request_id, body=body, generation=self.generation)
        transport.send(encode_request(hello))
        return transport

    def lose(self) -> None:
        """Drop the socket; does not wait until it has let go of lent memory."""
        self.is_greeted = False
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()
            self._left = [left for left in self._left if not left.is_released(0.0)]
            self._left.append(transport)

    def is_released(self) -> bool:
        """Tell whether dropped sockets read no memory, or only for what the node refuses."""
        self._left = [left for left in self._left if not left.is_released(0.0)]
        return not self._left

    def welcome(self, reply: Reply, *, is_known: bool, is_needed: bool) -> Welcome | None:
        """Judge the answer to a greeting; None: it is no answer to the last one, or a delay.

        Args:
            reply: to a HELLO.
            is_known: the node has welcomed this session before.
            is_needed: something was sent, and may still be done.

        Raises:
            SmboxError: the node refuses this client.
        """
        if reply.request != self._hello_id or self.is_greeted:
            return None
        if not isinstance(reply.body, Welcome):
            _check_delay(reply.raised(), is_known=is_known, is_needed=is_needed)
            return None
        self._peer.admit(self._number, reply.body)
        return reply.body

    def resumed(self) -> None:
        """Note that the node refuses, from now on, what dropped sockets may still send."""
        self.is_greeted = True
        self._left = []

    def say_bye(self, request_id: int) -> None:
        """Tell a node that listens that this channel is not coming back."""
        transport = self.transport
        bye = Request(Op.BYE, request_id, body=Empty(), generation=self.generation)
        if transport is not None and self.is_greeted and transport.send(encode_request(bye)):
            limit_s = time.monotonic() + FAREWELL_S
            while (left_s := limit_s - time.monotonic()) > 0:
                frames = transport.receive(left_s)
                if frames is None or decode_reply(frames).op is Op.BYE:
                    return

    def abandon(self) -> None:
        """Let go in a forked child: the connection stays the parent's."""
        self._left = []
        self.is_greeted = False
        if self.transport is not None:
            self.transport.abandon()
            self.transport = None


def _check_delay(error: SmboxError, *, is_known: bool, is_needed: bool) -> None:
    """Raise a refusal, unless it is one to ask again after."""
    if is_known and isinstance(error, AccessDeniedError):
        message = "the node that answers now does not know us"
        raise SessionExpiredError(message, outcome="unknown") from error
    may_wait = isinstance(error, NodeStoppingError | LimitError)
    if not (is_known and is_needed and may_wait):
        raise error
