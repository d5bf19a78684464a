"""The requests of a channel that are under way, in order, and the numbers they have. Pure.

Nothing is counted that can be derived: an interrupt may strike between any two lines, and a
number that follows from the requests before it is right whenever it is asked for.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from smbox.wire.call import Call
from smbox.wire.codec import Request, reply_to
from smbox.wire.messages import Welcome

_HELD: Final = attrgetter("held_nbytes")
_SOURCE: Final = attrgetter("source_nbytes")
_LENT: Final = attrgetter("lent_nbytes")


class Window:
    """The calls that were given out for sending at least once and are still of use.

    Answered changes stay until all before them are answered: ``acknowledged`` is exact.
    """

    def __init__(self) -> None:
        self.acknowledged = 0
        """The number up to which every change is answered."""
        self.calls: dict[int, Call] = {}
        """By request id, in program order."""
        self.lone: Request | None = None
        """Alone under way, without a call: to be settled or lined up by who gave it out."""
        self.room_nbytes = 0
        """Of data under way, as the node last said; 0: as its greeting says."""

    @property
    def open_changes(self) -> list[Call]:
        """The changes that hold numbers above ``acknowledged``."""
        return [call for call in self.calls.values() if call.is_change]

    @property
    def last(self) -> int:
        """The highest number given out."""
        for call in reversed(self.calls.values()):
            if call.numbers:
                return call.last
        return self.acknowledged + (0 if self.lone is None else self.lone.numbers)

    @property
    def is_unanswered(self) -> bool:
        """Whether a reply is due."""
        return any(call.reply is None and call.connection for call in self.calls.values())

    def has_room(self, call: Call, node: Welcome) -> bool:
        """Tell whether ``call``, the next one, may be given out within the node's limits."""
        if len(self.calls) >= node.window:
            return False
        others = [other for other in self.calls.values() if other.reply is None]
        if others:  # one request may always be under way
            for nbytes_of, most in (
                (_HELD, node.answers_nbytes),
                (_SOURCE, self.room_nbytes or node.sources_nbytes),
                (_LENT, node.lent_nbytes),
            ):
                wanted = nbytes_of(call)
                if wanted and wanted + sum(map(nbytes_of, others)) > most:
                    return False
        last_kept = self.acknowledged + node.ring_entries
        return not call.fills_ring or self.last + call.numbers <= last_kept

    def add(self, call: Call) -> None:
        """Put a call behind all others; adding it again changes nothing."""
        self.calls.setdefault(call.request.request, call)

    def remove(self, call: Call) -> None:
        """Forget a call that certainly did not happen; its numbers go to those behind it."""
        self.calls.pop(call.request.request, None)

    def offer_lone(self, request: Request, key: int, numbers: int) -> bool:
        """Number a request that is under way alone; False: others are."""
        if self.calls:
            return False
        self.lone = request
        request.request = key
        request.numbers = numbers
        request.number = self.acknowledged + bool(numbers)
        return True

    def settle_lone(self, request: Request) -> None:
        """Count the lone request as done."""
        if request.numbers:
            self.acknowledged = request.number + request.numbers - 1
        self.lone = None

    def line_up_lone(self, call: Call) -> None:
        """Take in a call whose request was sent without it."""
        self.add(call)
        self.lone = None

    def end_lone(self, applied: int) -> None:
        """Forget a lone request that was cut off: it was done, or never will be."""
        if self.lone is not None:
            self.acknowledged = applied
            self.lone = None

    def finish_applied(self, applied: int) -> None:
        """Answer ourselves the changes that are done and whose reply would say no more."""
        for call in list(self.calls.values()):
            if call.reply is None and not call.needs_answer and call.last <= applied:
                call.reply = reply_to(call.request)
        self.settle()

    def settle(self) -> None:
        """Forget answered requests: changes in order, so that the first open one is exact."""
        in_order = True
        for key, call in list(self.calls.items()):
            if call.reply is None:
                in_order = in_order and not call.numbers
            elif not call.numbers:
                del self.calls[key]
            elif in_order:
                self.acknowledged = max(self.acknowledged, call.request.number + call.done - 1)
                del self.calls[key]
        if self.room_nbytes and not self.open_changes:
            self.room_nbytes = 0  # others may have begun before this channel does again

    def line_up(self) -> None:
        """Give every open request the number that follows from those before it.

        A refusal takes no numbers, so those behind it move up and are sent again.
        """
        number = self.acknowledged + 1
        for call in self.calls.values():
            request, count = call.request, call.numbers
            if call.reply is None:
                due = number if count else number - 1
                if request.number != due:
                    call.connection = 0
                    request.number = due
                number += count
            elif count:
                number = max(number, request.number + call.done)

    def is_sent(self, connection: int) -> bool:
        """Tell whether all calls were sent on this connection: in order, so the last tells."""
        for call in reversed(self.calls.values()):
            return call.connection == connection
        return True

    def first_unsent(self, connection: int) -> Call | None:
        """Return the first call that was not sent on this connection, if any."""
        for call in self.calls.values():
            if call.reply is None and call.connection != connection:
                return call
        return None
