"""One thread's line to a memory node: its connection, and the works that use it in turn.

Works are sent in the order they were begun, and the thread that waits for one of them moves
all. The session numbers the requests, the connection carries them; the link decides whose
turn it is, and hands replies to the works. With nothing in line, a small request (``ask``) and
a long read (``stream``) go ahead without standing in it.

An interrupt may strike between any two lines. A pass over the link is therefore marked: one
that did not come to its end makes the next pass begin with a fresh connection, and with a look
for requests that a work keeps and the session does not know. Nothing else can be wrong then,
because the session derives every number, and a work keeps a request before it is queued.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from smbox.config import WINDOW_MAX, ClientConfig
from smbox.errors import PeerLostError, SmboxError
from smbox.paths.connection import Connection, Heard, MakeHello
from smbox.paths.line import Line
from smbox.paths.link_work import LinkWork, LoneWork, StreamWork, WorkCall
from smbox.paths.reentry import check_not_mine, is_mine
from smbox.transports.base import Frame, OpenTransport
from smbox.wire.call import Call
from smbox.wire.codec import Request
from smbox.wire.header import Buffer
from smbox.wire.messages import Welcome

W = TypeVar("W", bound=LoneWork)

SLICE_S: Final = 0.05
"""How long a silent pass keeps other threads from the link."""

STREAM_S: Final = 0.25
"""How long a long read keeps others from the link; what is under way then comes first."""

ASK_S: Final = 0.01
"""How long a small request is waited for before it stands in line, where timeouts are known."""

HANDOVER_S: Final = 1e-4


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
        self._line = Line(self._connection)
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
        return not self.thread.is_alive() and not self._line.works

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
            self._begin(work)

    def ask(self, request: Request, numbers: int, make: Callable[[], W]) -> Buffer | W:
        """Send a small request and wait a moment for its reply, if nothing is in line.

        Of a link that the calling thread has not entered.

        Args:
            request: without its numbers; its payload is copied when it is sent.
            numbers: how many it takes.
            make: makes the work that stands in line, if it has to after all.

        Returns:
            What the reply brings, if it says no more than that all was done; else that work,
            which is begun.
        """
        with self._mutex:
            if self._line.works or self._is_closed or not self._is_sound:
                return self._stand(make(), request, None)
            self._is_sound = False
            heard = self._connection.ask(request, numbers, ASK_S)
            if isinstance(heard, list):
                return self._stand(make(), request, heard)
            self._is_sound = True
            if heard is None:
                return self._stand(make(), request, None)
            self.answered += 1
            return heard

    def stream(self, work: StreamWork, deadline_s: float) -> None:
        """Move a read while nothing is in line, until it is done or stands in line itself.

        A slice at a time, so that others get the link: between two, nothing is under way.
        """
        check_not_mine(self._mutex)
        while not self._stream(work, deadline_s):
            time.sleep(HANDOVER_S)

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
            works = list(self._line.works)
        if not all(self.drive(work, deadline_s) for work in works):
            return False
        unseen, self._line.unseen = self._line.unseen, None
        if unseen is not None:
            raise unseen
        return True

    def seen(self, error: SmboxError) -> None:
        """Note that somebody was told of ``error``."""
        if self._line.unseen is error:
            self._line.unseen = None

    def let_go(self, work: LinkWork) -> None:
        """Stop using the caller's memory for what of ``work`` is on its way."""
        with self._mutex:
            self._line.let_go(work.open_calls())

    def cancel(self, work: LinkWork) -> None:
        """Take a work out of line: nothing more of it is begun."""
        with self._mutex:
            self._line.dismiss(work)

    def recall(self, call: WorkCall) -> None:
        """Take back a request behind a refused one; called by its work as that collects."""
        self._line.recall(call)

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
            for work in self._line.works:
                work.fail(PeerLostError("the box was closed", outcome="unknown"))
            self._line.works.clear()
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
        self._line.works.clear()

    def _stream(self, work: StreamWork, deadline_s: float) -> bool:
        """Make one slice; True once the work is done, or in line."""
        with self._mutex:
            now_s, works = time.monotonic(), self._line.works
            if works or self._is_closed or not self._is_sound or now_s >= deadline_s:
                if work not in works:  # it is, after an interrupt
                    self._begin(work)
                return True
            self._is_sound = False
            stream, frames = self._connection.stream(work, now_s + STREAM_S, deadline_s)
            self.answered += stream.answered
            if frames is not None:
                self._adopt(work, stream.open_requests(), frames)
                return True
            self._is_sound = True
            return work.is_done

    # What follows runs under the mutex.

    def _pass(self, work: LinkWork, deadline_s: float | None) -> bool:
        """Make one marked pass; True if ``work`` is done. Without a deadline only send."""
        if self._is_closed:
            work.fail(PeerLostError("the box is closed", outcome="not-sent"))
            return True
        was_sound, self._is_sound = self._is_sound, False
        try:
            if not was_sound:
                self._is_sent = False
                self._line.resume()
            if deadline_s is None:
                self._connection.send(self._line.queue_next)
                self._is_sent = True
            else:
                self._exchange(work, deadline_s)
        except SmboxError as error:
            self._line.end(error)
        self._is_sound = True
        return work.is_done

    def _exchange(self, work: LinkWork, deadline_s: float) -> None:
        """Send and receive until the work is done, time is over, or all is silent."""
        limit_s = min(deadline_s, time.monotonic() + SLICE_S)
        late = 0
        while not work.is_done:
            if not self._is_sent:
                self._connection.send(self._line.queue_next)
            self._is_sent = False
            left_s = limit_s - time.monotonic()
            if left_s <= 0:
                left_s, late = 0.0, late + 1
            if late > WINDOW_MAX or not self._take(self._connection.receive(left_s)):
                return

    def _begin(self, work: LinkWork) -> None:
        if not self._line.works:
            self._connection.expect()
        self._line.works.append(work)
        self._pass(work, None)

    def _stand(self, work: W, request: Request, frames: list[Frame] | None) -> W:
        """Begin a work, or let it go on with its request, if that was sent."""
        try:
            if frames is None:
                self._begin(work)
            else:
                self._adopt(work, [request], frames)
        except BaseException:
            work.cancel()  # nobody will ever know of it
            raise
        return work

    def _adopt(self, work: LoneWork, requests: Iterable[Request], frames: list[Frame]) -> None:
        """Put a work in line with what of it is under way, and take the message that came."""
        self._line.adopt(work, requests)
        self._is_sent = False
        self._connection.expect()
        try:
            if frames:
                self._take(self._connection.hear(frames))
        except SmboxError as error:
            self._line.end(error)
        self._is_sound = True

    def _take(self, heard: Call | Heard) -> bool:
        """Hand on what was heard; False when that was nothing."""
        if isinstance(heard, WorkCall):
            self.answered += 1
            self._line.collect(heard.work)
        elif heard is Heard.GREETING:
            self._line.collect_all()
        return heard is not Heard.NOTHING
