"""A client's channel whose node is a test: it answers message by message."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from smbox.address import GlobalAddress
from smbox.client.changes import Change
from smbox.client.channel import Channel
from smbox.client.connection import Connection, Identity
from smbox.client.transfer import Call
from smbox.config import ClientConfig
from smbox.dtypes import by_name
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.requests import Operation, RegionInfo
from smbox.paths.sinks import Bytes, Sink
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.header import NO_SCALE, Buffer
from smbox.wire.messages import Welcome
from smbox.wire.ops import CHANGES, Op

CONFIG: Final = ClientConfig("inproc://script", resend_after_s=60.0, resend_after_max_s=60.0)


class Wire:
    """One connection.

    Attributes:
        name: as a transport.
        generation: of its HELLO.
        greeting: the HELLO, until it is answered.
        sent: the requests that it accepted, oldest first; the test removes those it answers.
        replies: what the client receives next.
        is_full: it accepts no more requests.
        is_lent: it still reads lent memory, even when closed.
        strike: Ctrl-C strikes "before" or "after" the next request is accepted.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.greeting: Request | None = None
        self.sent: deque[Request] = deque()
        self.replies: deque[list[Buffer]] = deque()
        self.is_full = self.is_lent = False
        self.strike = ""

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Accept a request; see ``Transport``."""
        request = decode_request([bytes(frame) for frame in frames])
        if request.op is Op.HELLO:
            self.greeting, self.generation = request, request.generation
            return True
        if self.is_full:
            return False
        strike, self.strike = self.strike, ""
        if strike == "before":
            raise KeyboardInterrupt
        self.sent.append(request)
        if strike:
            raise KeyboardInterrupt
        return True

    def receive(self, timeout_s: float) -> list[Buffer] | None:  # noqa: ARG002 -- never waits
        """Return the next reply; see ``Transport``."""
        return self.replies.popleft() if self.replies else None

    def close(self) -> None:
        """Close the connection; see ``Transport``."""

    def is_released(self) -> bool:
        """Return what the test has set; see ``Transport``."""
        return not self.is_lent

    def reply(self, reply: Reply) -> None:
        """Answer a request."""
        self.replies.append([bytes(frame) for frame in encode_reply(reply)])

    def welcome(self, body: Welcome) -> None:
        """Answer the HELLO."""
        greeting, self.greeting = self.greeting, None
        assert greeting is not None
        self.reply(Reply(Op.HELLO, request=greeting.request, body=body))


class ScriptNode:
    """A channel of a client, and its connections.

    Attributes:
        channel: the client's.
        wires: all connections so far; the last one is open.
    """

    def __init__(self) -> None:
        self.channel = Channel(Connection(1, self._open, Identity(), CONFIG))
        self.wires: list[Wire] = []
        self.move()

    @property
    def wire(self) -> Wire:
        """The open connection."""
        return self.wires[-1]

    def move(self) -> None:
        """Let the channel receive and send as much as possible; it may connect."""
        self.channel.move(0.0)

    def transfer(self, address: int, op: Op, numbers: int = 0) -> Call | Scripted:
        """Describe a read of one byte, or a change of one or two bytes: a stripe each."""
        if op in CHANGES:
            return Scripted(self.channel, address, op, numbers)
        return Call(self.channel, op, address=address, nbytes=1)

    def _open(self) -> Wire:
        self.wires.append(Wire())
        return self.wire


class Scripted(Change):
    """A change of the last byte of one stripe, and of the first byte of the next one.

    Attributes:
        answers: whether the old bytes are returned.
        old: the old bytes received, by stripe.
    """

    FIRST: Final = STRIPE_NBYTES - 1

    def __init__(self, channel: Channel, address: int, op: Op, numbers: int) -> None:
        self.answers = op is Op.FETCH
        self.old: dict[int, int] = {}
        dtype, shape = by_name("uint8"), (2 * STRIPE_NBYTES,)
        info = RegionInfo("test", dtype, shape, address=GlobalAddress(address), node_uuid=b"")
        operation = Operation(
            info,
            "test",
            KernelCode.REPLACE,
            NO_SCALE,
            self.FIRST,
            self.FIRST + numbers,
            np.zeros(numbers, np.uint8),
            sink=cast("Sink", self._keep) if self.answers else None,
        )
        super().__init__(channel, operation)

    @property
    def done(self) -> int:
        """Number of stripes that are known to be changed."""
        return self.at - self.first

    def _keep(self, first: int, limit: int, old: Bytes) -> None:
        assert old.size == limit - first
        for byte, value in enumerate(old.tolist(), first - self.FIRST):
            self.old[byte] = value
