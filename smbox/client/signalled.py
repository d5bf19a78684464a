"""A change over the wire with a signal behind it: one transfer, in one round trip."""

from __future__ import annotations

from smbox.client.changes import Change
from smbox.client.channel import Channel
from smbox.client.message import Message
from smbox.client.transfer import ChannelWork
from smbox.paths.work import ByteRange


class Signalled(ChannelWork):
    """The requests of a change and, as its last unit, that of a counter's change.

    All are sent without waiting for replies. The node executes them in order, and what follows
    a refused change in flight is a GAP there (docs/protocol.md, "Numbers"): so the signal is
    never applied without all of the change.

    Args:
        channel: of the thread that begins it.
        change: of a range, without a sink.
        signal: of a counter, one request.
    """

    is_change = True

    def __init__(self, channel: Channel, change: Change, signal: Change) -> None:
        super().__init__(channel, change.first, change.limit + 1)
        self._change = change
        self._signal = signal

    def next_message(self) -> Message:
        """Cut the next request."""
        if self.cut < self._change.limit:
            self._change.cut = self.cut
            return self._change.next_message()
        message = self._signal.next_message()
        message.limit = self.limit
        return message

    def end_of(self, message: Message, done: int) -> int:
        """Return the byte behind the first ``done`` stripes of a request of the change."""
        return self._change.end_of(message, done)

    def ranges_done(self) -> list[ByteRange]:
        """List the range of the change that is certainly done."""
        limit = min(self.at, self._change.limit)
        return [(self.first, limit)] if limit > self.first else []
