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

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from smbox.client.connection import Peer
from smbox.client.engine import Engine
from smbox.client.message import Transfer
from smbox.config import ClientConfig
from smbox.errors import ConfigError, PeerLostError, SmboxError, TransportError
from smbox.transports.base import OpenTransport
from smbox.wire.messages import Welcome

HANDOVER_S: Final = 1e-4
RELEASE_S: Final = 0.9
"""How long a verb that ends early waits until nothing reads its array any more."""

LOOK_S: Final = 0.002


class Channel:
    """Used by any thread, one at a time; a verb inside a verb of the same thread is an error.

    Attributes:
        thread: whose it is.

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
        self._lock = threading.Lock()
        self._owner = 0  # the thread inside; another's, or stale, when the lock is free
        self._is_dirty = False
        self._end: SmboxError | None = None  # why nothing can be begun any more
        self._engine = Engine(number, open_transport, peer, config)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._engine.flight.is_empty

    @property
    def answered(self) -> int:
        """How many of its requests have been answered."""
        return self._engine.answered

    @property
    def welcome(self) -> Welcome | None:
        """What the node said about itself last."""
        return self._engine.flight.node

    @property
    def parked(self) -> dict[str, Any]:
        """What the node said last of the stripe that the oldest request waits for."""
        return self._engine.parked

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard, since something was asked for."""
        return time.monotonic() - self._engine.patience.heard_s

    # What transfers ask.

    def begin(self, transfer: Transfer) -> None:
        """Take a transfer, and send of it what can be sent at once."""
        with self._entered():
            self._pass(transfer, None)

    def drive(self, transfer: Transfer, deadline_s: float) -> bool:
        """Move a transfer, begun or not, until it is done (True) or until the deadline."""
        while True:
            with self._entered():
                if self._pass(transfer, deadline_s):
                    return True
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
        with self._entered():
            if any(message.transfer is transfer for message in self._engine.flight.messages):
                self._engine.connection.lose()
            self._engine.flight.drop(transfer)
        return self.release()

    def release(self) -> bool:
        """Wait until the connections that were left read no caller's memory, or harmlessly.

        Harmlessly: the node has acknowledged a later generation.
        """
        limit_s = time.monotonic() + RELEASE_S
        while True:
            with self._entered():
                if self._engine.connection.is_released():
                    return True
            if time.monotonic() >= limit_s:
                return False
            self.drive(_Look(), time.monotonic() + LOOK_S)
            time.sleep(HANDOVER_S)

    def drain(self, deadline_s: float) -> bool:
        """Move all that is under way now until it is done; False at the deadline.

        Raises:
            SmboxError: the first failure of a change that nobody was told of.
        """
        with self._entered():
            under_way = self._engine.flight.under_way
        if not all(self.drive(transfer, deadline_s) for transfer in under_way):
            return False
        unseen, self._engine.unseen = self._engine.unseen, None
        if unseen is not None:
            raise unseen
        return True

    def seen(self, error: SmboxError) -> None:
        """Note that somebody was told of ``error``."""
        if self._engine.unseen is error:
            self._engine.unseen = None

    def close(self) -> None:
        """Say goodbye if the node listens, and close; transfers end with PeerLostError."""
        if self._end is None:
            self._end = PeerLostError("the box was closed", outcome="unknown")
        if self._is_inside():
            return  # as above
        with self._entered():
            try:
                if not self._is_dirty:
                    self._engine.connection.say_bye(next(self._engine.flight.ids))
            except TransportError:
                pass  # the node will find out by itself
            finally:
                self._engine.fail(self._end)

    def abandon(self) -> None:
        """Let go in a forked child, whose copy of the lock may be held for ever."""
        self._lock = threading.Lock()
        self._owner = 0
        self._end = PeerLostError("the box is the parent's", outcome="unknown")
        self._engine.flight.clear()
        self._engine.connection.abandon()

    # What follows runs under the lock.

    def _is_inside(self) -> bool:
        return self._owner == threading.get_ident() and self._lock.locked()

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        if self._is_inside():
            raise ConfigError(
                "a signal handler or finalizer cannot use the box inside another call of its"
                " thread; let it set a flag and return"
            )
        mine = threading.get_ident()
        try:
            with self._lock:
                self._owner = mine
                yield
        finally:
            if self._owner == mine:
                self._owner = 0

    def _pass(self, transfer: Transfer, deadline_s: float | None) -> bool:
        """Move the channel a slice; True once ``transfer`` is done. None: only send."""
        if transfer.is_done:
            return True
        if self._end is not None:
            transfer.fail(self._end)
            return True
        if self._is_dirty:
            self._engine.connection.lose()
        self._is_dirty = True
        try:
            if not transfer.is_begun:
                self._engine.add(transfer)
            if deadline_s is None:
                self._engine.send()
            else:
                self._engine.exchange(transfer, deadline_s)
        except SmboxError as error:
            if isinstance(error, PeerLostError):
                self._end = error
            self._engine.fail(error)
        self._is_dirty = False
        return transfer.is_done


class _Look(Transfer):
    """Never done: whoever drives it sees what the node says meanwhile."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.is_begun = True
