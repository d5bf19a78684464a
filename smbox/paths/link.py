"""One thread's line to a memory node: its connection, and the works that use it in turn.

Works are sent in the order they were begun, and the thread that waits for one of them moves
all. The session numbers the requests, the connection carries them; the link decides whose
turn it is, and hands replies to the works.

An interrupt may strike between any two lines. A pass over the link is therefore marked: one
that did not come to its end makes the next pass begin with a fresh connection, and with a look
for requests that a work keeps and the session does not know. Nothing else can be wrong then,
because the session derives every number, and a work keeps a request before it is queued.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from smbox.config import WINDOW_MAX, ClientConfig
from smbox.errors import PeerLostError, SmboxError
from smbox.paths.connection import Connection, Heard, MakeHello
from smbox.paths.link_work import LinkWork, WorkCall
from smbox.paths.reentry import check_not_mine, is_mine
from smbox.transports.base import OpenTransport
from smbox.wire.messages import Welcome

SLICE_S: Final = 0.05
"""How long a silent pass keeps other threads from the link."""

HANDOVER_S: Final = 1e-4

IDLE_S: Final = 60.0
"""After so long a silence the node may have forgotten the channel (memnode: 300 s): greeting
it first costs a round trip, a change that meets no session an error."""


class Link:
    """One thread's line; any thread may drive it.

    Attributes:
        thread: whose it is.
        answered: how many of its requests have been answered.

    Args:
        open_transport: opens a fresh connection to the node.
        make_hello: names the client and this channel, for each new session.
        config: patience.
    """

    def __init__(
        self, open_transport: OpenTransport, make_hello: MakeHello, config: ClientConfig
    ) -> None:
        self.thread = threading.current_thread()
        self.answered = 0
        self._mutex = threading.RLock()
        self._connection = Connection(open_transport, make_hello, config)
        self._works: deque[LinkWork] = deque()
        self._last: WorkCall | None = None  # the last one queued
        self._unseen: SmboxError | None = None
        self._is_sent = False  # all that can be, since the last work began
        self._is_sound = True
        self._is_closed = False

    @property
    def welcome(self) -> Welcome | None:
        """What the node said about itself when it last greeted this session."""
        return self._connection.session.welcome

    @property
    def is_left(self) -> bool:
        """Whether its thread has ended with nothing under way."""
        return not self.thread.is_alive() and not self._works

    @property
    def is_entered(self) -> bool:
        """Whether the calling thread is inside a call of this link: in a signal handler."""
        return is_mine(self._mutex)

    def silent_s(self) -> float:
        """Return for how long nothing has come, since something was asked for."""
        return self._connection.silent_s()

    def begin(self, work: LinkWork) -> None:
        """Put a work in line, and send of it what can be sent at once."""
        check_not_mine(self._mutex)
        with self._mutex:
            if not self._works:
                self._connection.expect(within_s=IDLE_S)
            self._works.append(work)
            self._pass(work, None)

    def drive(self, work: LinkWork, deadline_s: float) -> bool:
        """Move the works until ``work`` is done (True), or until the deadline (False)."""
        check_not_mine(self._mutex)
        while True:
            with self._mutex:
                if work.is_done or self._pass(work, deadline_s):
                    return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(HANDOVER_S)  # or a thread that waits for the mutex never gets it

    def drain(self, deadline_s: float) -> bool:
        """Move all works that are in line now until they are done; False at the deadline.

        Raises:
            SmboxError: the first failure that nobody was told of.
        """
        check_not_mine(self._mutex)
        with self._mutex:
            works = list(self._works)
        if not all(self.drive(work, deadline_s) for work in works):
            return False
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            raise unseen
        return True

    def seen(self, error: SmboxError) -> None:
        """Note that somebody was told of ``error``."""
        if self._unseen is error:
            self._unseen = None

    def let_go(self, work: LinkWork) -> None:
        """Stop using the caller's memory for what of ``work`` is on its way.

        The bytes of a request that has a number never change: they are copied, after the
        connection that may still be sending them is closed.
        """
        with self._mutex:
            self._let_go(work.open_calls())

    def cancel(self, work: LinkWork) -> None:
        """Take a work out of line: nothing more of it is begun."""
        with self._mutex:
            self._dismiss(work)

    def recall(self, call: WorkCall) -> None:
        """Take back a request behind a refused one; called by its work as that collects."""
        self._connection.session.recall(call)
        if self._last is call:
            self._last = None

    def close(self) -> None:
        """Say goodbye if the node listens, and close; works end with PeerLostError.

        From a signal handler inside a call, whose connection is in use: nothing is sent.
        """
        if self.is_entered:
            self._is_closed = True
            return
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
            for work in self._works:
                work.fail(PeerLostError("the box was closed", outcome="unknown"))
            self._works.clear()
            try:
                if self._is_sound:
                    self._connection.say_bye()
            except SmboxError:
                pass  # whatever it was, we are leaving
            finally:
                self._connection.disconnect()

    def abandon(self) -> None:
        """Let go in a forked child, whose copy of the mutex may be held for ever."""
        self._mutex = threading.RLock()
        self._is_closed = True
        self._connection.abandon()
        self._works = deque()

    # What follows runs under the mutex.

    def _pass(self, work: LinkWork, deadline_s: float | None) -> bool:
        """Make one marked pass; True if ``work`` is done. Without a deadline only send."""
        if self._is_closed:
            work.fail(PeerLostError("the box is closed", outcome="not-sent"))
            return True
        was_sound, self._is_sound = self._is_sound, False
        try:
            if not was_sound:
                self._recover()
            if deadline_s is None:
                self._connection.send(self._queue_next)
                self._is_sent = True
            else:
                self._exchange(work, deadline_s)
        except SmboxError as error:
            self._give_up(error)
        self._is_sound = True
        return work.is_done

    def _exchange(self, work: LinkWork, deadline_s: float) -> None:
        """Send and receive until the work is done, time is over, or all is silent."""
        limit_s = min(deadline_s, time.monotonic() + SLICE_S)
        late = 0
        while not work.is_done:
            if not self._is_sent:
                self._connection.send(self._queue_next)
            self._is_sent = False
            left_s = limit_s - time.monotonic()
            if left_s <= 0:
                left_s, late = 0.0, late + 1
            if late > WINDOW_MAX or not self._receive(left_s):
                return

    def _queue_next(self) -> bool:
        """Queue one more request, if the last one has been given out; tell whether one was."""
        last = self._last
        if last is not None and not last.offers and last.reply is None:
            return False
        for work in self._works:
            if work.has_more:
                call = work.next_call()
                if call is not None:
                    self._last = call
                    self._connection.session.enqueue(call)
                return call is not None
        return False

    def _receive(self, timeout_s: float) -> bool:
        """Take one message; False when none came."""
        heard = self._connection.receive(timeout_s)
        if isinstance(heard, WorkCall):
            self.answered += 1
            self._collect(heard.work)
        elif heard is Heard.GREETING:
            for work in list(self._works):
                self._collect(work)
        return heard is not Heard.NOTHING

    def _collect(self, work: LinkWork) -> None:
        work.collect()
        if work.is_done:
            self._unseen = self._unseen or work.unseen
            self._dismiss(work)

    def _dismiss(self, work: LinkWork) -> None:
        """Let a work go that is done, failed or cancelled."""
        if self._works and self._works[0] is work:
            self._works.popleft()
        elif work in self._works:
            self._works.remove(work)
        calls = list(work.open_calls())
        if not calls:
            return
        for call in calls:
            if self._connection.session.withdraw(call):
                self._last = None
        self._let_go(calls)

    def _let_go(self, calls: Iterable[WorkCall]) -> None:
        borrowed = [call for call in calls if call.is_borrowed]
        if any(call.offers for call in borrowed):
            self._connection.disconnect()
        for call in borrowed:
            call.request.payload = bytes(call.request.payload)
            call.is_borrowed = False

    def _recover(self) -> None:
        """Begin anew after a pass that was cut off."""
        self._connection.disconnect()
        self._last = None
        self._is_sent = False
        for work in list(self._works):
            if not work.is_done:
                for call in list(work.open_calls()):
                    self._connection.session.enqueue(call)
            self._collect(work)

    def _give_up(self, error: SmboxError) -> None:
        """End every work: the session cannot go on. The next one begins with a new session."""
        for work in self._works:
            work.fail(error)
            self._unseen = self._unseen or work.unseen
        self._connection.renew()
        self._last = None
        self._works.clear()
