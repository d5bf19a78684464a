"""The requests of a channel that are under way, in order, and the numbers they have. Pure.

Nothing is counted that can be derived: an interrupt may strike between any two lines, and a
number that follows from the requests before it is right whenever it is asked for.
"""

from __future__ import annotations

from smbox.wire.call import Call


class Window:
    """The calls that were given out for sending at least once and are still of use.

    Answered changes stay until all before them are answered: ``acknowledged`` is exact.
    """

    def __init__(self) -> None:
        self.acknowledged = 0
        """The number up to which every change is answered."""
        self.calls: dict[int, Call] = {}
        """By request id, in program order."""

    @property
    def open_changes(self) -> list[Call]:
        """The changes that hold numbers above ``acknowledged``."""
        return [call for call in self.calls.values() if call.is_change]

    @property
    def last(self) -> int:
        """The highest number given out."""
        return max((call.last for call in self.open_changes), default=self.acknowledged)

    def has_room(self, call: Call, requests: int, numbers: int) -> bool:
        """Tell whether ``call`` may be given out under these limits of the node."""
        if len(self.calls) >= requests:
            return False
        return not call.is_change or self.last + call.numbers <= self.acknowledged + numbers

    def add(self, call: Call) -> None:
        """Put a call behind all others; adding it again changes nothing."""
        self.calls.setdefault(call.request.request, call)

    def settle(self) -> None:
        """Forget answered requests: changes in order, so that the first open one is exact."""
        in_order = True
        for key, call in list(self.calls.items()):
            if call.reply is None:
                in_order = in_order and not call.is_change
            elif not call.is_change:
                del self.calls[key]
            elif in_order:
                self.acknowledged = max(self.acknowledged, call.request.number + call.done - 1)
                del self.calls[key]

    def line_up(self) -> None:
        """Give every open request the number that follows from those before it.

        A refusal takes no numbers, so those behind it move up and are sent again.
        """
        number = self.acknowledged + 1
        for call in self.calls.values():
            if call.reply is not None:
                if call.is_change:
                    number = max(number, call.request.number + call.done)
                continue
            due = number if call.is_change else number - 1
            if call.request.number != due:
                call.connection = 0
                call.request.number = due
            number += call.numbers

    def first_unsent(self, connection: int) -> Call | None:
        """Return the first call that was not sent on this connection, if any."""
        for call in self.calls.values():
            if call.reply is None and call.connection != connection:
                return call
        return None
