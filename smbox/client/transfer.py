"""Verbs over the wire that somebody waits for; single requests; and waiting for a version."""

from __future__ import annotations

import time
from typing import Final

from smbox.client.channel import Channel
from smbox.client.message import Message, Transfer
from smbox.deadline import left_s
from smbox.errors import RequestTimeoutError
from smbox.paths.work import ByteRange, RegionInfo
from smbox.wire.codec import Reply
from smbox.wire.messages import Body
from smbox.wire.ops import Op
from smbox.work import Work

WAIT_MS: Final = 500
"""How long one WAIT may be parked: less than the usual patience of a channel (1 s), so that
a region that does not change is not taken for a node that does not answer."""

POLL_MS: Final = 20
"""The same for a caller that looks and goes on, and may look again at once."""

VERSION_MAX: Final = (1 << 64) - 1
"""The largest version that a header can carry; no region ever reaches it."""


class ChannelWork(Transfer, Work):
    """A transfer that somebody waits for: ``Work`` over a channel.

    Attributes:
        is_left: it is over for its caller.
        has_ranges: its units are bytes of the region, certain as soon as they are answered.

    Args:
        channel: of the thread that begins it.
        first: first unit.
        limit: behind the last one.
    """

    has_ranges = True

    def __init__(self, channel: Channel, first: int, limit: int) -> None:
        super().__init__(first, limit)
        self._channel = channel
        self._is_array_free = True
        self.is_left = False

    def begin(self) -> None:
        """Join the channel, which sends what can be sent at once."""
        self._channel.begin(self)

    def advance(self, deadline_s: float) -> bool:
        """Drive the channel until this transfer is done; begins it, if need be."""
        if not self.is_done and not self._channel.drive(self, deadline_s):
            return False
        if self.error is not None and not self.is_over:
            self._channel.seen(self.error)
            self._is_array_free = self._channel.release()
            raise self.error
        return True

    def cancel(self) -> None:
        """Send nothing more, and read the caller's arrays no more; see ``Work``."""
        if not self.is_left:
            self._is_array_free = self._channel.leave(self)
            self.is_left = True

    def progress(self) -> int:
        """Return how many replies have come: those before this have their turn."""
        return self._channel.answered

    def outcome(self) -> str:
        """Tell what is known of the effect; see ``Work``."""
        if self.at >= self.limit:
            return "all"
        if self.is_change and self.cut > self.at:
            return "unknown"
        return "partial" if self.ranges_done() else "none"

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is certainly done."""
        return [(self.first, self.at)] if self.has_ranges and self.at > self.first else []

    def facts(self) -> dict[str, object]:
        """Tell for how long the node has been silent, who is in the way, and what is in use."""
        facts = self._channel.facts()
        if not self._is_array_free:
            facts["array"] = "still being read: do not reuse its memory"
        return facts


class Call(ChannelWork):
    """One request that is no change.

    Attributes:
        reply: the node's, when it said yes.
        copies: how often it was sent, when the reply came.

    Args:
        channel: of the thread that asks.
        op: what is asked.
        body: of a control op.
        address: as the other fields, of the request's header.
    """

    def __init__(
        self,
        channel: Channel,
        op: Op,
        body: Body | None = None,
        *,
        address: int = 0,
        nbytes: int = 0,
        version: int = 0,
    ) -> None:
        super().__init__(channel, 0, 1)
        self.reply: Reply | None = None
        self.copies = 0
        self._asked = op, address, nbytes, version, body

    def next_message(self) -> Message:
        """Make the request."""
        op, address, nbytes, version, body = self._asked
        return Message(op, address=address, nbytes=nbytes, version=version, body=body, limit=1)

    def take(self, message: Message, reply: Reply) -> None:
        """Keep the reply."""
        self.reply, self.copies = reply, message.copies

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """End."""
        self.copies = message.copies
        super().refused(message, reply, done)

    def answer(self, timeout_s: float) -> Reply:
        """Send the request, and wait for its reply.

        Raises:
            RequestTimeoutError: none came in time; the request is not sent again.
            SmboxError: the node said no.
        """
        try:
            self.advance(time.monotonic() + timeout_s)
        finally:
            if not self.is_done:
                self.cancel()
        if self.reply is None:
            name = self._asked[0].name.lower()
            raise RequestTimeoutError(
                f"{name} was not answered in time",
                op=name,
                timeout_s=timeout_s,
                outcome="unknown" if self.is_begun else "none",
                **self.facts(),
            )
        return self.reply


class VersionWait(Work):
    """A wait for a region's version, as a row of short WAITs; the Args of ``wait_version``.

    Attributes:
        found: the version that ended the wait.
    """

    def __init__(self, channel: Channel, info: RegionInfo, version: int) -> None:
        self.found = 0
        self._channel = channel
        self._address = int(info.address)
        self._wanted = version  # any whole number: what a header cannot say is never reached
        self._slice: Call | None = None
        self._is_reached = False

    def advance(self, deadline_s: float) -> bool:
        """Wait at the node until the version is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
        """
        while not self._is_reached:
            call = self._slice
            if call is None:
                call = self._slice = self._begin(deadline_s)
            try:
                if not call.advance(deadline_s):
                    return False
            except RequestTimeoutError:
                pass  # the node's: the version was not reached within this slice
            self._slice = None
            self.found = 0 if call.reply is None else call.reply.version
            self._is_reached = call.reply is not None and self.found >= self._wanted
            if time.monotonic() >= deadline_s:
                break
        return self._is_reached

    def _begin(self, deadline_s: float) -> Call:
        """Make a slice that ends with the caller's patience: others of the thread follow."""
        wait_ms = int(min(WAIT_MS, 1000 * left_s(deadline_s))) or POLL_MS
        version = min(max(self._wanted, 0), VERSION_MAX)
        return Call(
            self._channel, Op.WAIT, address=self._address, nbytes=wait_ms, version=version
        )

    def cancel(self) -> None:
        """Wait no more."""
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None

    def facts(self) -> dict[str, object]:
        """Tell what was waited for."""
        return {"wanted": self._wanted}
