"""One thread's channel to a memory node: requests in flight, their numbers, one socket.

A transfer is cut into messages; a message is numbered, joins the requests in flight, and is
sent; replies come in the same order (but for WAIT, which lets others pass). Any thread may
drive a channel: the thread that waits for one transfer moves all that are before it.

Whatever goes wrong has one answer. A channel is dirty from entering ``_pass`` until leaving
it. A dirty channel, a lost reply, a silent node: the channel drops its socket, connects anew,
says HELLO with the next generation, settles by ``applied`` what was in flight, and sends the
rest again. So an interrupt may strike anywhere, if two things hold: a message is in flight
before it is sent, and its reply is taken before it leaves.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

from smbox.client.message import Message, Transfer
from smbox.client.patience import Patience
from smbox.config import WINDOW_MAX, ClientConfig
from smbox.errors import (
    AccessDeniedError,
    ConfigError,
    LimitError,
    NodeStoppingError,
    PeerLostError,
    SessionExpiredError,
    SmboxError,
)
from smbox.transports.base import Frame, OpenTransport, Transport
from smbox.wire.codec import Reply, Request, decode_reply, encode_request
from smbox.wire.messages import Empty, Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.status import Status

SLICE_S: Final = 0.05
"""How long one pass keeps other threads from the channel."""

HANDOVER_S: Final = 1e-4
RELEASE_S: Final = 0.9
"""How long a verb that ends early waits until nothing reads its array any more."""

LOOK_S: Final = 0.002
FAREWELL_S: Final = 0.5


class Peer(Protocol):
    """Who the client is, and which memory it has come to know."""

    def hello(self, channel: int, generation: int) -> Hello:
        """Word the greeting of a connection."""

    def admit(self, channel: int, welcome: Welcome) -> None:
        """Check that this is the memory that the client knows; PeerLostError."""


class Channel:
    """Used by any thread, one at a time; a verb inside a verb of the same thread is an error.

    Attributes:
        thread: whose it is.
        welcome: what the node said about itself last.
        answered: how many of its requests have been answered.
        parked: what the node said last of the stripe that its oldest request waits for.

    Args:
        number: of the channel among those of the client.
        open_transport: opens a fresh connection to the node.
        peer: names the client, and knows the memory.
        config: patience.
    """

    def __init__(
        self, number: int, open_transport: OpenTransport, peer: Peer, config: ClientConfig
    ) -> None:
        self.thread = threading.current_thread()
        self.welcome: Welcome | None = None
        self.answered = 0
        self.parked: dict[str, Any] = {}
        self._channel = number
        self._open_transport = open_transport
        self._peer = peer
        self._lock = threading.Lock()
        self._owner = 0  # the thread inside; another's, or stale, when the lock is free
        self._is_dirty = False
        self._end: SmboxError | None = None  # why nothing can be begun any more
        self._patience = Patience(config)
        self._transport: Transport | None = None
        self._left: list[Transport] = []  # closed, and maybe still reading lent memory
        self._generation = 0
        self._is_greeted = False
        self._hello_id = 0
        self._ids = itertools.count(1)
        self._next = 1  # the number of the next change
        self._waiting: deque[Transfer] = deque()  # of which more is to be cut
        self._flight: deque[Message] = deque()  # numbered and unanswered, in order
        self._unsent: deque[Message] = deque()  # of those: to be sent on this connection
        self._pending: Message | None = None  # cut, and not in flight: no room yet
        self._source = self._copied = self._lent = 0  # bytes of those in flight
        self._credit = 0  # of source bytes, as the node last said; 0: as it welcomed us
        self._unseen: SmboxError | None = None  # a change failed with, and nobody was told

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._flight or self._waiting)

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard, since something was asked for."""
        return time.monotonic() - self._patience.heard_s

    # What transfers ask.

    def begin(self, transfer: Transfer) -> None:
        """Take a transfer, and send of it what can be sent at once."""
        self._check_entry()
        with self._lock:
            self._owner = threading.get_ident()
            try:
                self._pass(transfer, None)
            finally:
                self._owner = 0

    def drive(self, transfer: Transfer, deadline_s: float) -> bool:
        """Move a transfer, begun or not, until it is done (True) or until the deadline."""
        self._check_entry()
        while True:
            with self._lock:
                self._owner = threading.get_ident()
                try:
                    if self._pass(transfer, deadline_s):
                        return True
                finally:
                    self._owner = 0
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(HANDOVER_S)  # or a thread that waits for the lock never gets it

    def leave(self, transfer: Transfer) -> bool:
        """Let a transfer's caller go: nothing more is sent, and its arrays are not read.

        Returns:
            False: memory of some caller may still be read, RELEASE_S after this began.
        """
        transfer.leave()
        if self._is_inside():
            return False  # a signal handler inside a pass, which has the socket in hand
        with self._lock:
            if any(message.transfer is transfer for message in self._flight):
                self._lose()
            self._drop(transfer)
        return self.release()

    def release(self) -> bool:
        """Wait until the connections that were left read no caller's memory, or harmlessly.

        Harmlessly: the node has acknowledged a later generation.
        """
        limit_s = time.monotonic() + RELEASE_S
        while True:
            with self._lock:
                self._left = [left for left in self._left if not left.is_released(0.0)]
            if not self._left:
                return True
            if time.monotonic() >= limit_s:
                return False
            self.drive(_Look(), time.monotonic() + LOOK_S)

    def drain(self, deadline_s: float) -> bool:
        """Move all that is under way now until it is done; False at the deadline.

        Raises:
            SmboxError: the first failure of a change that nobody was told of.
        """
        self._check_entry()
        with self._lock:
            under_way = self._under_way()
        if not all(self.drive(transfer, deadline_s) for transfer in under_way):
            return False
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            raise unseen
        return True

    def seen(self, error: SmboxError) -> None:
        """Note that somebody was told of ``error``."""
        if self._unseen is error:
            self._unseen = None

    def close(self) -> None:
        """Say goodbye if the node listens, and close; transfers end with PeerLostError."""
        if self._end is None:
            self._end = PeerLostError("the box was closed", outcome="unknown")
        if self._is_inside():
            return  # as above
        with self._lock:
            if self.is_idle and self._is_greeted and not self._is_dirty:
                self._say_bye()
            self._fail(self._end)

    def abandon(self) -> None:
        """Let go in a forked child, whose copy of the lock may be held for ever."""
        self._lock = threading.Lock()
        self._owner = 0
        self._end = PeerLostError("the box is the parent's", outcome="unknown")
        self._flight.clear()
        self._waiting.clear()
        self._left.clear()
        if self._transport is not None:
            self._transport.abandon()
            self._transport = None

    # What follows runs under the lock.

    def _is_inside(self) -> bool:
        return self._owner == threading.get_ident() and self._lock.locked()

    def _check_entry(self) -> None:
        if self._is_inside():
            raise ConfigError(
                "a signal handler or finalizer cannot use the box inside another call of its"
                " thread; let it set a flag and return"
            )

    def _pass(self, transfer: Transfer, deadline_s: float | None) -> bool:
        """Move the channel a slice; True once ``transfer`` is done. None: only send."""
        if transfer.is_done:
            return True
        if self._end is not None:
            transfer.fail(self._end)
            return True
        if self._is_dirty:
            self._lose()
        self._is_dirty = True
        try:
            if not transfer.is_begun:
                self._add(transfer)
            if deadline_s is None:
                self._connect_or_send()
            else:
                self._exchange(transfer, deadline_s)
        except SmboxError as error:
            self._fail(error)
        self._is_dirty = False
        return transfer.is_done

    def _add(self, transfer: Transfer) -> None:
        if self.is_idle:
            now_s = time.monotonic()
            if self._patience.is_stale(now_s):
                self._lose()
            self._patience.expect(now_s)
        transfer.is_begun = True
        self._waiting.append(transfer)

    def _exchange(self, transfer: Transfer, deadline_s: float) -> None:
        """Send and receive until the transfer is done, the slice is over, or all is silent."""
        now_s = time.monotonic()
        limit_s = min(deadline_s, now_s + SLICE_S)
        late, patience = 0, self._patience
        while True:
            transport, is_greeted = self._connect_or_send(), self._is_greeted
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
                self._lose()
            elif not left_s:
                return

    def _connect_or_send(self) -> Transport:
        transport = self._transport
        if transport is None:
            return self._connect()
        if self._is_greeted:
            unsent = self._unsent
            while unsent or self._cut_next():
                message = unsent[0]
                message.generation = self._generation
                if not transport.send(encode_request(message), lent=True):
                    break
                message.copies += 1
                unsent.popleft()
        return transport

    def _cut_next(self) -> bool:
        """Number the next request and put it in flight; False: none, or no room yet."""
        while self._waiting:
            transfer = self._waiting[0]
            if transfer.cut >= transfer.limit or transfer.is_done or transfer.is_over:
                self._waiting.popleft()
                continue
            message = self._pending
            if message is None or message.transfer is not transfer:
                message = transfer.next_message()
            if message is None:
                return False
            if not self._has_room(message):
                self._pending = message
                return False
            message.request = next(self._ids)
            message.number = self._next if message.numbers else self._next - 1
            self._next += message.numbers
            self._pending = None
            self._flight.append(message)
            self._unsent.append(message)
            transfer.cut = message.limit
            self._count(message, 1)
            return True
        return False

    def _has_room(self, message: Message) -> bool:
        node = self.welcome
        if not self._flight or node is None:
            return True  # one request may always be in flight
        source, copied, lent = message.source_nbytes, message.copied_nbytes, message.lent_nbytes
        if len(self._flight) >= node.window:
            return False
        if source and self._source + source > (self._credit or node.sources_nbytes):
            return False
        if copied and self._copied + copied > node.answers_nbytes:
            return False
        if lent and self._lent + lent > node.lent_nbytes:
            return False
        last = self._next + message.numbers - 1
        return not message.fills_ring or last <= self._acknowledged() + node.ring_entries

    def _count(self, message: Message, sign: int) -> None:
        self._source += sign * message.source_nbytes
        self._copied += sign * message.copied_nbytes
        self._lent += sign * message.lent_nbytes

    def _acknowledged(self) -> int:
        """Return the number up to which every change is answered."""
        first = next((message for message in self._flight if message.numbers), None)
        return (self._next if first is None else first.number) - 1

    # Replies.

    def _hear(self, frames: list[Frame]) -> None:
        reply = decode_reply(frames)
        if reply.op is Op.HELLO:
            if reply.request == self._hello_id and not self._is_greeted:
                self._greet(reply)
            return
        if reply.status is Status.NO_SESSION:
            self._lose()
            return
        message, is_next = self._find(reply)
        if message is None or reply.number != message.number:
            return  # to an earlier copy, of another number
        if reply.status is Status.PARKED:
            self.parked = {} if reply.error is None else reply.error.facts
        elif reply.status is Status.GAP:
            if message.before <= self._acknowledged():
                raise SessionExpiredError(
                    "the node lost changes that it had acknowledged", outcome="unknown"
                )
            self._lose()  # something before it was lost on its way
        elif reply.status is Status.SESSION_EXPIRED:
            raise SessionExpiredError("the node has ended this session", outcome="unknown")
        elif not is_next:
            self._lose()  # the reply to something before it was lost
        else:
            self._answer(message, reply)

    def _find(self, reply: Reply) -> tuple[Message | None, bool]:
        """Return what a reply answers, and whether its turn has come."""
        is_next = True
        for message in self._flight:
            if message.request == reply.request:
                return message, is_next or message.op is Op.WAIT
            is_next = is_next and message.op is Op.WAIT
        return None, False

    def _answer(self, message: Message, reply: Reply) -> None:
        self.parked = {}
        transfer, flight = message.transfer, self._flight
        if reply.room:
            self._credit = reply.room << 20
        done = message.numbers
        if reply.status is Status.OK:
            transfer.answered(message, reply)
        else:
            done = 0 if reply.error is None else message.done(reply.error.applied)
            if not transfer.is_done:
                transfer.refused(message, reply, done)
        if flight[0] is message:
            flight.popleft()
        else:
            flight.remove(message)
        self.answered += 1
        self._count(message, -1)
        if not flight:
            self._credit = 0  # others may have begun before this channel does again
        if done < message.numbers:
            self._renumber(message, done)
        if transfer.is_change and transfer.error is not None:
            self._unseen = self._unseen or transfer.error

    def _renumber(self, refused: Message, done: int) -> None:
        """Cut anew what followed a refused change: all of that is a GAP at the node."""
        self._next = refused.number + done
        behind = [message for message in self._flight if message.before >= self._next]
        self._flight = deque(each for each in self._flight if each.before < self._next)
        self._recut(behind)

    def _recut(self, dropped: Iterable[Message]) -> None:
        """Put the transfers of messages that will never be answered back in line."""
        self._waiting = deque(
            dict.fromkeys([*(message.transfer for message in dropped), *self._waiting])
        )
        for transfer in self._waiting:
            ends = (each.limit for each in self._flight if each.transfer is transfer)
            transfer.rewind(max(ends, default=transfer.at))
        self._pending = None
        self._unsent = deque(message for message in self._unsent if message in self._flight)
        self._source = self._copied = self._lent = 0
        for message in self._flight:
            self._count(message, 1)

    # Connections.

    def _connect(self) -> Transport:
        self._generation += 1
        self.parked = {}
        self._hello_id = next(self._ids)
        transport = self._transport = self._open_transport()
        body = self._peer.hello(self._channel, self._generation)
        hello = Request(Op.HELLO, self._hello_id, body=body, generation=self._generation)
        transport.send(encode_request(hello))
        return transport

    def _lose(self) -> None:
        """Drop the socket; the next pass connects anew, and resumes."""
        self._is_greeted = False
        transport, self._transport = self._transport, None
        if transport is not None:
            self._left.append(transport)
            transport.close()

    def _greet(self, reply: Reply) -> None:
        """Resume: settle by ``applied`` what was in flight, and line up the rest."""
        found, known = reply.body, self.welcome
        if not isinstance(found, Welcome):
            self._turned_away(reply.raised())
            return
        self._peer.admit(self._channel, found)
        if known is None:
            self._next = found.applied + 1
        else:
            self._compare(known, found)
        self.welcome = found
        self._settle(found.applied)
        self._left = []  # what their frames bring is refused from now on
        self._is_greeted = True

    def _turned_away(self, error: SmboxError) -> None:
        """Ask again later, if what was sent may still be done."""
        if self.welcome is not None and isinstance(error, AccessDeniedError):
            message = "the node that answers now does not know us"
            raise SessionExpiredError(message, outcome="unknown") from error
        may_wait = isinstance(error, NodeStoppingError | LimitError)
        if self.welcome is None or not self._flight or not may_wait:
            raise error

    def _compare(self, known: Welcome, found: Welcome) -> None:
        """Check that it is the channel that we left."""
        changes = [message for message in self._flight if message.numbers]
        last = self._next - 1
        if not changes and not found.resumed:
            self._next = found.applied + 1
        elif (
            known.epoch != found.epoch
            or not self._acknowledged() <= found.applied <= last
            or (changes and not found.resumed)
        ):
            raise SessionExpiredError("the node has forgotten this client", outcome="unknown")

    def _settle(self, applied: int) -> None:
        """Learn what was applied; number anew, and line up, what is still wanted."""
        number = self._acknowledged() + 1
        kept: deque[Message] = deque()
        for message in self._flight:
            transfer, done = message.transfer, message.done(applied)
            is_known = done == message.numbers and not message.needs_answer
            is_taken = message.first < transfer.at or transfer.is_done
            if is_taken or is_known or transfer.is_over:
                if not is_taken:
                    transfer.settle(message, done)
                number = message.number + done if done else number
            else:
                if not done:
                    message.number = number if message.numbers else number - 1
                number = message.number + (message.numbers or 1)
                kept.append(message)
        self._next = number
        dropped, self._flight, self._unsent = self._flight, kept, deque(kept)
        self._recut(dropped)

    # Ends.

    def _under_way(self) -> list[Transfer]:
        transfers = [*(message.transfer for message in self._flight), *self._waiting]
        return list(dict.fromkeys(transfers))

    def _drop(self, transfer: Transfer) -> None:
        """Forget a transfer of which nothing is in flight."""
        if self._pending is not None and self._pending.transfer is transfer:
            self._pending = None
        if transfer in self._waiting:
            self._waiting.remove(transfer)

    def _fail(self, error: SmboxError) -> None:
        """End all that is under way: the session cannot go on; the next begins a new one."""
        if isinstance(error, PeerLostError):
            self._end = self._end or error
        for transfer in self._under_way():
            if transfer.is_change and not transfer.is_done and not transfer.is_over:
                self._unseen = self._unseen or error
            transfer.fail(error)
        self._flight.clear()
        self._unsent.clear()
        self._waiting.clear()
        self._pending = None
        self._source = self._copied = self._lent = self._credit = 0
        self.welcome = None
        self._lose()

    def _say_bye(self) -> None:
        """Tell a node that listens that this channel is not coming back."""
        transport = self._transport
        bye = Request(Op.BYE, next(self._ids), body=Empty(), generation=self._generation)
        try:
            if transport is not None and transport.send(encode_request(bye)):
                transport.receive(FAREWELL_S)
        except SmboxError as error:
            self._end = self._end or error  # it is gone; so are we


class _Look(Transfer):
    """Never done: whoever drives it sees what the node says meanwhile."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.is_begun = True
