"""The works of a link in order, and which of their requests the session has.

Used under the link's mutex. An interrupt may strike between any two lines: a work keeps a
request before it is queued, and ``resume`` looks for those that the session does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from smbox.errors import SmboxError
from smbox.paths.connection import Connection
from smbox.paths.link_work import LinkWork, LoneWork, WorkCall
from smbox.wire.codec import Request


class Line:
    """Works that take turns on a connection.

    Attributes:
        works: in the order they were begun; those that are done have left.
        unseen: the first failure of a change that nobody was told of.

    Args:
        connection: theirs.
    """

    def __init__(self, connection: Connection) -> None:
        self.works: deque[LinkWork] = deque()
        self.unseen: SmboxError | None = None
        self._connection = connection
        self._last: WorkCall | None = None  # the last one queued

    def adopt(self, work: LoneWork, requests: Iterable[Request]) -> None:
        """Put a work in line whose requests were sent while it was not, and are under way."""
        for request in requests:
            request.payload = bytes(request.payload)  # its caller may be gone, by an interrupt
            call = work.adopt(request)
            self._connection.session.line_up_lone(call)
            self._last = call
        self.works.append(work)

    def queue_next(self) -> bool:
        """Queue one more request, if the last one has been given out; tell whether one was."""
        last = self._last
        if last is not None and not last.offers and last.reply is None:
            return False
        for work in self.works:
            if work.has_more:
                call = work.next_call()
                if call is not None:
                    self._last = call
                    self._connection.session.enqueue(call)
                return call is not None
        return False

    def collect(self, work: LinkWork) -> None:
        """Let a work take its replies; one that is done then leaves."""
        work.collect()
        if work.is_done:
            self.unseen = self.unseen or work.unseen
            self.dismiss(work)

    def collect_all(self) -> None:
        """Let every work take its replies."""
        for work in list(self.works):
            self.collect(work)

    def dismiss(self, work: LinkWork) -> None:
        """Let a work go that is done, failed or cancelled."""
        if self.works and self.works[0] is work:
            self.works.popleft()
        elif work in self.works:
            self.works.remove(work)
        if self._last is not None and self._last.work is work and self._last.reply is not None:
            self._last = None  # or its arrays would live as long
        calls = list(work.open_calls())
        if not calls:
            return
        for call in calls:
            if self._connection.session.withdraw(call):
                self._last = None
        self.let_go(calls)

    def let_go(self, calls: Iterable[WorkCall]) -> None:
        """Stop using the caller's memory for these requests.

        The bytes of a request that has a number never change: they are copied, after the
        connection that may still be sending them is closed.
        """
        borrowed = [call for call in calls if call.is_borrowed]
        if any(call.offers for call in borrowed):
            self._connection.disconnect()
        for call in borrowed:
            call.request.payload = bytes(call.request.payload)
            call.is_borrowed = False

    def recall(self, call: WorkCall) -> None:
        """Take back a request behind a refused one."""
        self._connection.session.recall(call)
        if self._last is call:
            self._last = None

    def resume(self) -> None:
        """Go on after an interrupt, on a fresh connection."""
        self._connection.disconnect()
        self._last = None
        for work in list(self.works):
            if not work.is_done:
                for call in list(work.open_calls()):
                    self._connection.session.enqueue(call)
            self.collect(work)

    def end(self, error: SmboxError) -> None:
        """End every work: the session cannot go on. The next one begins with a new session."""
        for work in self.works:
            work.fail(error)
            self.unseen = self.unseen or work.unseen
        self._connection.renew()
        self._last = None
        self.works.clear()
