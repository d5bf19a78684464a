"""Connection: the socket of a channel, its greetings, and its timeouts.

A node that does not answer is greeted again after ``resend_after_s``, doubling to
``resend_after_max_s``. A node that has answered the greeting and is then silent may be behind a
slow network, where a message takes many seconds and a new connection restarts it: so the reply
timeout is twice the time of the last reply, and doubles in silence up to SILENCE_MAX_S.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec.structs import replace

from smbox.config import ClientConfig
from smbox.deadline import left_s
from smbox.errors import (
    AccessDeniedError,
    LimitError,
    NodeStoppingError,
    PeerLostError,
    SegmentError,
    SessionExpiredError,
    SmboxError,
)
from smbox.memory import layout
from smbox.memory.segment import Segment
from smbox.wire.codec import Reply, Request, decode_reply, encode_request
from smbox.wire.header import Buffer
from smbox.wire.messages import NONCE_NBYTES, Empty, Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.proving import CLIENT, NODE, Challenge, check_welcome, proof_of

FAREWELL_S: Final = 0.5
SILENCE_MAX_S: Final = 20.0
"""The longest reply timeout: 2 MiB over 1 Mbit/s. It also limits how late a kill of the node is
noticed after a long silence, as while a stripe is locked."""
IDLE_S: Final = 60.0
"""After this silence the channel greets first, for a round trip: the node may have dropped its
session (memnode: after 300 s), and a change without a session is an error."""


class Transport(Protocol):
    """Carries messages, as frames, between a client's thread and a memory node.

    It does not know the protocol. It may lose whole messages, but keeps the order of those that
    arrive. One thread uses it at a time.
    """

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send one message; never waits.

        Large frames may be sent from the caller's memory, which must not change until the reply
        is here or ``is_released`` returns True.

        Returns:
            False if the queue is full; nothing was sent.
        """

    def receive(self, timeout_s: float) -> list[Buffer] | None:
        """Return the next message, or None after ``timeout_s``; 0 does not wait.

        Frames are read-only, and valid as long as they are referenced.
        """

    def close(self) -> None:
        """Close, and drop unsent messages, without waiting; see ``is_released``. Idempotent.

        In a forked child it releases the copy; the parent's connection stays open.
        """

    def is_released(self) -> bool:
        """Return True if no caller's memory is read any more; never waits."""


OpenTransport: TypeAlias = Callable[[], Transport]
"""Makes a new connection to one node; it retries by itself until the node listens."""


class Identity:
    """The client's identity, its proof of sharing the node's host, and the node's memory."""

    def __init__(self) -> None:
        self._node_uuid = b""
        self._client_id = secrets.token_bytes(16)
        self._challenge: Challenge | None = None
        self._cookie = b""
        self._expected: dict[int, bytes] = {}  # the proof in WELCOME, by channel

    def admit(self, channel: int, welcome: Welcome) -> None:
        """Check that a WELCOME is of the node that was greeted, and of the known memory.

        Raises:
            AccessDeniedError: the node does not prove its identity; no request was sent.
            PeerLostError: it has another memory.
        """
        check_welcome(welcome, self._expected.get(channel, b""))
        self._node_uuid = self._node_uuid or welcome.node_uuid
        if self._node_uuid != welcome.node_uuid:
            message = "another memory answers at this address: connect again"
            raise PeerLostError(message, outcome="unknown")

    def hello(self, channel: int) -> Hello:
        """Return the greeting of a channel."""
        hello = Hello(
            client_id=self._client_id,
            channel=channel,
            node_uuid=self._node_uuid,
            pid=os.getpid(),
            host=socket.gethostname(),
        )
        if (challenge := self._challenge) is None:
            return hello
        hello = replace(hello, nonce=secrets.token_bytes(NONCE_NBYTES))
        self._expected[channel] = proof_of(NODE, self._cookie, challenge, hello)
        return replace(hello, proof=proof_of(CLIENT, self._cookie, challenge, hello))

    def accept_challenge(self, channel: int, facts: dict[str, object]) -> bool:
        """Take the first challenge in a refusal's facts; False if a proof would not help.

        A channel that greeted without a proof greets again. Another memory's is not taken.

        Raises:
            SystemLimitError: the cookie cannot be read at present; no challenge was taken.
        """
        if self._challenge is not None:
            return channel not in self._expected
        challenge = Challenge.from_facts(facts)
        if challenge is None or self._node_uuid.hex() not in {"", challenge.node_uuid}:
            return False
        name = layout.name_of(challenge.node_name, "cookie")
        with contextlib.suppress(SegmentError):
            self._cookie, self._challenge = Segment.attach(name).bytes.tobytes(), challenge
            # Another node at this address is refused from now on.
            self._node_uuid = bytes.fromhex(challenge.node_uuid)
            return True
        return False


class Connection:
    """The socket of a channel, or none; each new socket has the next generation.

    Attributes:
        transport: the socket; None if it is not open.
        generation: of the last socket opened.
        is_greeted: the node has sent WELCOME on it.
        heard_s: time of the last reply, or of the first request after idleness.

    Args:
        number: of the channel.
        open_transport: opens a fresh connection to the node.
        identity: makes the greetings, and knows the memory.
        config: the first and the longest interval between greetings.
    """

    def __init__(
        self,
        number: int,
        open_transport: OpenTransport,
        identity: Identity,
        config: ClientConfig,
    ) -> None:
        self.transport: Transport | None = None
        self.generation = 0
        self.is_greeted = False
        self.heard_s = 0.0
        self._number = number
        self._open_transport = open_transport
        self._identity = identity
        self._hello_id = 0
        self._closing: list[Transport] = []  # closed, maybe still reading callers' memory
        self._first_s, self._greeting_max_s = config.resend_after_s, config.resend_after_max_s
        self._greeting_s = self._reply_s = config.resend_after_s
        self._quiet_s = 0.0  # time waited since the last reply
        self._leave_by_s = -math.inf  # deadline of the reply to BYE; before BYE in the past

    def open(self, request_id: int) -> Transport:
        """Open a socket, and send the greeting as its first message."""
        self.generation += 1
        self._hello_id = request_id
        transport = self.transport = self._open_transport()
        body = self._identity.hello(self._number)
        hello = Request(Op.HELLO, request=request_id, body=body, generation=self.generation)
        transport.send(encode_request(hello))
        return transport

    def expect(self) -> None:
        """Note that replies are due from now on; close a socket that was idle for IDLE_S."""
        now_s = time.monotonic()
        if now_s - self.heard_s > IDLE_S:
            self.lose()
        self.heard_s = now_s
        self._quiet_s = 0.0

    def receive(self, transport: Transport, timeout_s: float) -> list[Buffer] | None:
        """Wait for a message; close a socket that is silent beyond its timeout."""
        patience_s = self._reply_s if self.is_greeted else self._greeting_s
        began_s = time.monotonic()
        frames = transport.receive(max(0.0, min(timeout_s, patience_s - self._quiet_s)))
        self._quiet_s += time.monotonic() - began_s
        if frames is None and self._quiet_s >= patience_s:
            if self.is_greeted:
                self._reply_s = self._twice_as_long()
            else:
                self._greeting_s = min(2 * self._greeting_s, self._greeting_max_s)
            self._quiet_s = 0.0
            self.lose()
        return frames

    def answered(self) -> None:
        """Note that a reply came; not every message is one (see protocol.md)."""
        if self.is_greeted:
            self._reply_s = self._twice_as_long()
        else:
            self._greeting_s = self._first_s
        self._quiet_s = 0.0
        self.heard_s = time.monotonic()

    def _twice_as_long(self) -> float:
        return max(self._first_s, min(2 * self._quiet_s, SILENCE_MAX_S))

    def lose(self) -> None:
        """Close the socket, without waiting until it has released callers' memory."""
        self.is_greeted = False
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()
            self._closing = [each for each in self._closing if not each.is_released()]
            self._closing.append(transport)

    def is_released(self) -> bool:
        """Return True if no closed socket reads memory for a request that the node accepts."""
        return all(each.is_released() for each in self._closing)

    def welcome(self, reply: Reply, *, is_known: bool, is_needed: bool) -> Welcome | None:
        """Check the reply to a greeting; return None if it is stale, or asks to wait or prove.

        Args:
            reply: to a HELLO.
            is_known: the node has welcomed this session before.
            is_needed: requests in flight may still be done.

        Raises:
            SmboxError: the node refuses this client.
        """
        if reply.request != self._hello_id or self.is_greeted:
            return None
        if isinstance(reply.body, Welcome):
            self._identity.admit(self._number, reply.body)
            self.is_greeted = True
            self._closing = []  # the node refuses what they may still send
            return reply.body
        error = reply.to_error()
        if isinstance(error, AccessDeniedError):
            if is_known:
                message = "the node that answers now does not know this client"
                raise SessionExpiredError(message, outcome="unknown") from error
            if self._identity.accept_challenge(self._number, error.facts):
                self.lose()  # the next greeting has the proof that the node demands
                return None
        if not (is_known and is_needed and isinstance(error, NodeStoppingError | LimitError)):
            raise error
        return None

    def say_bye(self, request_id: int) -> None:
        """Send BYE if the node is connected; does not wait."""
        if self._leave_by_s > 0.0 or self.transport is None or not self.is_greeted:
            return
        bye = Request(Op.BYE, request=request_id, body=Empty(), generation=self.generation)
        with contextlib.suppress(SmboxError):  # the session expires by itself
            if self.transport.send(encode_request(bye)):
                self._leave_by_s = time.monotonic() + FAREWELL_S

    def await_bye(self) -> None:
        """Wait for the reply to BYE: closing the socket would drop it unsent.

        Waits until FAREWELL_S after it was sent: channels that close together wait together.
        """
        transport = self.transport
        with contextlib.suppress(SmboxError):
            while transport is not None and (left := left_s(self._leave_by_s)) > 0.0:
                frames = transport.receive(left)
                if frames is None or decode_reply(frames).op is Op.BYE:
                    return

    def abandon(self) -> None:
        """Release it in a forked child; the parent's connection stays open."""
        self.lose()
        self._closing = []
