"""A session and the connection it uses at present: frames, greetings and patience; no works.

When nothing has been heard for too long although something should, or when the node does not
know the connection, it is closed and a fresh one opened; the session then sends again what
needs it.

A node that is away is greeted again after ``resend_after_s``, doubling to
``resend_after_max_s``. One that greets and then is silent may be behind a slow network, where a
message takes many seconds and a fresh connection begins it anew: so patience with it is twice
as long as its last answer took, and doubles in silence up to SILENCE_MAX_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from smbox.config import ClientConfig
from smbox.errors import (
    AccessDeniedError,
    LimitError,
    NodeStoppingError,
    SessionExpiredError,
    SmboxError,
)
from smbox.paths.link_work import StreamWork
from smbox.paths.read_stream import FAST_NBYTES, ReadStream, suited_nbytes
from smbox.transports.base import Frame, OpenTransport, Transport
from smbox.wire.call import Call
from smbox.wire.codec import Request, encode_request
from smbox.wire.header import Buffer
from smbox.wire.messages import Empty, Hello
from smbox.wire.ops import Op
from smbox.wire.plain import expected_head, plain_payload
from smbox.wire.session import ClientSession

FAREWELL_S: Final = 0.5

SILENCE_MAX_S: Final = 20.0
"""The longest patience with a node that has greeted: 2 MiB over 1 Mbit/s. It is how long it may
take to see that a node was killed which had long been silent, as when a stripe is held."""

IDLE_S: Final = 60.0
"""After so long a silence the node may have forgotten the channel (memnode: 300 s): greeting
it first costs a round trip, a change that meets no session an error."""

MakeHello: TypeAlias = Callable[[], Hello]


class Heard(Enum):
    """What a receive brought that is no reply to a call."""

    NOTHING = "nothing came in time"
    GREETING = "the node welcomed this connection: any call may have been answered by that"
    NOISE = "a message that changes nothing"


class Connection:
    """Used by one thread at a time.

    Args:
        open_transport: opens a fresh connection to the node.
        make_hello: names the client and its channel, for a new session.
        config: patience.
    """

    def __init__(
        self, open_transport: OpenTransport, make_hello: MakeHello, config: ClientConfig
    ) -> None:
        self.session = ClientSession(make_hello())
        self._make_hello = make_hello
        self._open_transport = open_transport
        self._config = config
        self._transport: Transport | None = None
        self._quiet_since_s = 0.0  # or since the last try to end the quiet
        self._heard_s = 0.0
        self._waited_s = 0.0  # of that, in here: a caller that computes hears nothing either
        self._patience_s = config.resend_after_s  # with a node that has greeted
        self._greeting_s = config.resend_after_s  # with one that has not
        self._lend_nbytes = FAST_NBYTES

    def silent_s(self) -> float:
        """Return for how long nothing was heard, or nothing was expected."""
        return time.monotonic() - self._heard_s

    def expect(self) -> None:
        """Let patience begin now; a connection that has long been silent is left."""
        if self._transport is not None and self.silent_s() > IDLE_S:
            self.disconnect()
        self._heard_s = self._begin_quiet()

    def ask(
        self, request: Request, numbers: int, timeout_s: float
    ) -> Buffer | list[Frame] | None:
        """Send a small request that is alone, and wait for its plain reply.

        Returns:
            What that brings. A list: the message that came instead, or nothing in time; the
            session has to be told to line the request up. None: it was not sent and has to
            stand in line, as after a long silence.
        """
        transport, session, begun_s = self._transport, self.session, time.monotonic()
        if transport is None or begun_s - self._heard_s > IDLE_S:
            return None
        if not session.offer_lone(request, numbers):
            return None
        if not transport.send(encode_request(request)):
            session.unsent()
            return None
        head = expected_head(request)  # now: the node is at work
        frames = transport.receive(timeout_s)
        payload = None if frames is None else plain_payload(request, head, frames)
        if payload is None:
            return frames or []
        session.settle_lone(request)
        self._heard_s = self._begin_quiet()
        self._patience_s = self._patience_after(self._heard_s - begun_s)
        return payload

    def stream(
        self, work: StreamWork, until_s: float, deadline_s: float
    ) -> tuple[ReadStream, list[Frame] | None]:
        """Let a long read that is alone run; returns and raises also as ``ReadStream.run``.

        After a long silence, or without a connection, nothing is sent.
        """
        stream, begun_s = work.stream(self._lend_nbytes), time.monotonic()
        if self._transport is None or begun_s - self._heard_s > IDLE_S:
            return stream, []
        try:
            frames = stream.run(self._transport, self.session, until_s, deadline_s)
        except SmboxError:
            self.renew()
            raise
        if stream.answered:
            self._heard_s = self._begin_quiet()
            self._lend_nbytes = suited_nbytes(stream.taken_nbytes, self._heard_s - begun_s)
        return stream, frames

    def send(self, queue_next: Callable[[], bool]) -> None:
        """Hand the transport all that the window admits.

        Args:
            queue_next: queues one more call with the session, if there is one and the
                session has given out all that it has; tells whether it did.
        """
        transport = self._transport or self._open()
        session = self.session
        while not session.needs_hello:
            if not queue_next() and session.is_all_sent:
                return
            call = session.next_to_send()
            if call is None:
                return
            if not transport.send(call.frames(), lent=True):
                session.unsent()
                return
            session.sent()

    def receive(self, timeout_s: float) -> Call | Heard:
        """Take one message, and open a fresh connection when that is called for.

        Returns:
            The call that was answered, or what else was heard.

        Raises:
            SmboxError: the session cannot go on; see ``ClientSession.receive``.
        """
        transport = self._transport or self._open()
        begun_s = time.monotonic()
        frames = transport.receive(timeout_s)
        self._waited_s += time.monotonic() - begun_s
        if frames is None:
            self._check_patience()
            return Heard.NOTHING
        return self.hear(frames)

    def hear(self, frames: list[Frame]) -> Call | Heard:
        """Take a message; returns and raises as ``receive``."""
        session = self.session
        was_greeting = session.needs_hello
        try:
            call = session.receive(frames)
        except (NodeStoppingError, LimitError):
            if session.welcome is None or not session.is_unanswered:
                raise
            return Heard.NOTHING  # what was sent may still be done: ask again later
        except AccessDeniedError as error:
            if session.welcome is None:
                raise
            message = "the node that answers now does not know us"
            raise SessionExpiredError(message, outcome="unknown") from error
        waited_s = self._waited_s
        self._heard_s = self._begin_quiet()
        if call is not None:
            self._patience_s = self._patience_after(waited_s)
            return call
        self._greeting_s = self._config.resend_after_s
        if session.needs_hello and not was_greeting:
            self._open()
        return Heard.GREETING if was_greeting and not session.needs_hello else Heard.NOISE

    def _begin_quiet(self) -> float:
        """Let patience begin; returns the time."""
        self._waited_s = 0.0
        self._quiet_since_s = time.monotonic()
        return self._quiet_since_s

    def _patience_after(self, waited_s: float) -> float:
        return max(self._config.resend_after_s, min(2 * waited_s, SILENCE_MAX_S))

    def _check_patience(self) -> None:
        quiet_s = time.monotonic() - self._quiet_since_s
        if self.session.needs_hello:
            if quiet_s < self._greeting_s:
                return
            self._greeting_s = min(2 * self._greeting_s, self._config.resend_after_max_s)
        elif self.session.is_unanswered and quiet_s >= self._patience_s:
            self._patience_s = self._patience_after(quiet_s)
        else:
            return
        self._begin_quiet()
        self._open()

    def _open(self) -> Transport:
        """Open a fresh connection, on which the greeting is the first message."""
        self.disconnect()
        transport = self._transport = self._open_transport()
        transport.send(self.session.hello())
        return transport

    def disconnect(self) -> None:
        """Close; afterwards nothing reads memory that was lent to the transport."""
        if self._transport is not None:
            self._transport.close()
        self._transport = None

    def renew(self) -> None:
        """Begin another session on the same channel, with nothing under way.

        The node drops what it holds of a channel's former connection before it welcomes a
        new one, so nothing of the former session happens after the next greeting.
        """
        self.disconnect()
        self.session = ClientSession(self._make_hello())

    def say_bye(self) -> None:
        """Tell a node that listens that this channel is not coming back."""
        transport, session = self._transport, self.session
        if transport is None or session.needs_hello or session.expired is not None:
            return
        call = session.begin(Request(Op.BYE, body=Empty()))
        limit_s = time.monotonic() + FAREWELL_S
        while call.reply is None and not session.needs_hello:
            left_s = limit_s - time.monotonic()
            offered = session.next_to_send()
            if offered is not None and transport.send(offered.frames()):
                session.sent()
            frames = transport.receive(max(0.0, left_s))
            if frames is None or left_s < 0:
                return
            session.receive(frames)

    def abandon(self) -> None:
        """Let go in a forked child: the connection stays the parent's."""
        if self._transport is not None:
            self._transport.abandon()
        self._transport = None
