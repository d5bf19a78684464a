"""Channel: one thread's connection to a memory node, with numbered requests in flight.

A transfer is split into messages. A message gets a number, joins the requests in flight, and is
sent; replies come in the same order, except that others may pass a WAIT. Any thread may drive a
channel: a thread that waits for one transfer also drives all transfers before it.

All failures have one recovery. A channel is dirty from entering ``_run`` until leaving it. If
it is dirty on entry, or a reply was lost, or the node is silent, the channel closes its socket,
connects again, sends HELLO with the next generation, settles by ``applied`` what was in flight,
and sends the rest again. This makes it safe to interrupt at any point, on two conditions: a
message is in flight before it is sent, and its reply is taken before it is removed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from smbox.client.connection import Connection, Transport
from smbox.client.flight import Flight
from smbox.client.transfer import Transfer
from smbox.config import WINDOW_MAX
from smbox.errors import PeerLostError, SessionExpiredError, SmboxError
from smbox.paths.threads import ThreadQueue
from smbox.wire.codec import Reply, decode_reply, encode_request
from smbox.wire.header import Buffer
from smbox.wire.ops import Op, Status
from smbox.work import NestedCallError, exclusive

SLICE_S: Final = 0.05
"""How long one pass may hold the channel's lock."""

HANDOVER_S: Final = 1e-4
"""Pause between two looks at closed sockets, in which other threads get the channel's lock."""
RELEASE_S: Final = 0.9
"""How long a cancelled or failed verb waits until nothing reads its array any more."""
POLL_S: Final = 0.002
HOLDER_FACTS: Final = ("region", "stripe", "holder_pid")


class Channel(ThreadQueue[Transfer]):
    """One thread's queue of transfers to a node.

    Attributes:
        flight: the requests in flight, and the node's last WELCOME.

    Args:
        connection: to the node; not open.
    """

    pause_max_s = SLICE_S / 100  # nobody sends or receives meanwhile

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.flight = Flight()
        self._parked: dict[str, Any] = {}  # facts of the stripe that blocks the oldest request
        self._is_dirty = False
        self._end: SmboxError | None = None  # the error of all later requests

    @property
    def is_idle(self) -> bool:
        """Return True if no request is in flight or waiting."""
        return not (self.flight.messages or self.flight.waiting)

    def facts(self) -> dict[str, object]:
        """Return the seconds since the last reply, and the holder of the stripe waited for."""
        silent_s = round(time.monotonic() - self._connection.heard_s, 3)
        return {"silent_s": silent_s} | self._parked

    def cancel(self, transfer: Transfer) -> None:
        """Cancel a transfer: nothing more is sent, and its arrays are not accessed.

        Waits for RELEASE_S at most, and notes whether the transport has released its array.
        """
        transfer.mark_cancelled()
        transfer.is_array_free = False
        with suppress(NestedCallError):  # a signal handler inside a pass, which uses the socket
            self._remove(transfer)
            transfer.is_array_free = self._await_release()

    @exclusive
    def _remove(self, transfer: Transfer) -> None:
        if any(message.transfer is transfer for message in self.flight.messages):
            self._connection.lose()
        if transfer in self.flight.waiting:
            self.flight.waiting.remove(transfer)

    def await_array(self, transfer: Transfer) -> None:
        """Wait for the array of a failed transfer as ``cancel`` does."""
        transfer.is_array_free = self._await_release()

    def move(self, deadline_s: float) -> None:
        """Run everything in flight until the deadline, and receive what the node sends."""
        endless = Transfer(self, 0, 1)
        endless.is_begun = True
        self.drive(endless, deadline_s)

    def _await_release(self) -> bool:
        """Wait until closed connections read no caller's memory, or their reads do no harm.

        They do no harm once the node has acknowledged a later generation.
        """
        limit_s = time.monotonic() + RELEASE_S
        while not self._connection.is_released():
            if time.monotonic() >= limit_s:
                return False
            self.move(time.monotonic() + POLL_S)
            time.sleep(HANDOVER_S)
        return True

    @exclusive
    def _pending(self) -> list[Transfer]:
        return [each for each in self.flight.transfers if each.is_change]

    def say_bye(self) -> None:
        """Say goodbye if the node is connected; later requests fail. Does not wait."""
        if self._end is None:
            self._end = PeerLostError("the box was closed", outcome="unknown")
        with suppress(NestedCallError):  # as in ``cancel``
            self._send_bye()

    @exclusive
    def _send_bye(self) -> None:
        if not self._is_dirty:
            self._connection.say_bye(next(self.flight.ids))

    def close(self) -> None:
        """Say goodbye, unless that was said, and close; transfers fail with PeerLostError."""
        self.say_bye()
        with suppress(NestedCallError):  # as in ``cancel``
            self._close()

    @exclusive
    def _close(self) -> None:
        assert self._end is not None
        try:
            self._connection.await_bye()
        finally:
            self._fail(self._end)

    def abandon(self) -> None:
        """Release it in a forked child."""
        self._end = PeerLostError("the box is the parent's", outcome="unknown")
        self.flight = Flight()
        self._connection.abandon()

    @exclusive
    def _run(self, transfer: Transfer, deadline_s: float | None) -> bool:
        """Run the channel for a time slice; without a deadline only send."""
        if transfer.is_done:
            return True
        if self._end is not None:
            transfer.fail(self._end)
            return True
        if self._is_dirty:
            self._connection.lose()
        self._is_dirty = True
        try:
            if not transfer.is_begun:
                if self.is_idle:
                    self._connection.expect()
                transfer.is_begun = True
                self.flight.waiting.append(transfer)
            if deadline_s is None:
                self._send()
            else:
                self._exchange(transfer, deadline_s)
        except SmboxError as error:
            if isinstance(error, PeerLostError):
                self._end = error
            self._fail(error)
        self._is_dirty = False
        return transfer.is_done

    def _exchange(self, transfer: Transfer, deadline_s: float) -> None:
        """Send and receive until the transfer is done or the time slice is over.

        Then it takes the replies that have come already, but at most a window full of them, as
        other threads wait for the channel's lock.
        """
        limit_s = min(deadline_s, time.monotonic() + SLICE_S)
        late = 0
        transport = self._send()
        while not transfer.is_done and late <= WINDOW_MAX:
            left_s = limit_s - time.monotonic()
            is_late = left_s <= 0
            late += is_late
            frames = self._connection.receive(transport, max(0.0, left_s))
            if frames is not None:
                self._hear(frames)
            elif is_late and self._connection.transport is not None:
                return  # silent, but within its timeout
            transport = self._send()

    def _send(self) -> Transport:
        """Connect, or send as many messages as allowed; return the socket."""
        connection, flight = self._connection, self.flight
        transport = connection.transport
        if transport is None:
            return connection.open(next(flight.ids))
        if connection.is_greeted:
            unsent = flight.unsent
            while unsent or flight.cut_next():
                message = unsent[0]
                message.generation = connection.generation
                if not transport.send(encode_request(message)):
                    break
                message.copies += 1
                unsent.popleft()
        return transport

    def _hear(self, frames: list[Buffer]) -> None:
        reply, connection, flight = decode_reply(frames), self._connection, self.flight
        if reply.status is Status.NO_SESSION:
            connection.lose()
            return
        if reply.op is Op.HELLO:
            connection.answered()
            self._resume(reply)
            return
        message, is_next = flight.find(reply)
        if message is None or reply.number != message.number:
            return  # the reply to an earlier copy of another number, or a probe of the node
        connection.answered()
        if reply.status is Status.PARKED:
            facts = {} if reply.error is None else reply.error.facts
            self._parked = {name: facts[name] for name in HOLDER_FACTS if name in facts}
            # Progress: the node works on it, and has not begun again.
            message.incarnation = message.incarnation or flight.incarnation
            goes_on = message.op is Op.CREATE and message.incarnation == flight.incarnation
            self.completed += (message.copies == 1 or goes_on) and not self._parked
        elif reply.status is Status.GAP:
            connection.lose()  # a message before it was lost
        elif reply.status is Status.SESSION_EXPIRED:
            raise SessionExpiredError("the node has ended this session", outcome="unknown")
        elif not is_next:
            connection.lose()  # the reply to a message before it was lost
        else:
            self.completed += 1
            self._parked = {}
            flight.answer(message, reply)

    def _resume(self, reply: Reply) -> None:
        """Settle what was in flight by the number applied last, and queue the rest."""
        self._parked = {}
        is_known, is_needed = self.flight.node is not None, bool(self.flight.messages)
        welcome = self._connection.welcome(reply, is_known=is_known, is_needed=is_needed)
        if welcome is not None:
            self.flight.resume(welcome)

    def _fail(self, error: SmboxError) -> None:
        """Fail all transfers; the next one begins a new session."""
        for transfer in self.flight.transfers:
            transfer.fail(error)
        self.flight = Flight()
        self._connection.lose()
