"""Single requests that change no region, and waiting for a version."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from smbox.client.channel import Channel
from smbox.client.transfer import Message, Transfer
from smbox.deadline import left_s
from smbox.errors import RequestTimeoutError
from smbox.paths.threads import Half
from smbox.paths.work import RegionInfo
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


class Call(Transfer):
    """One request that is no change.

    Attributes:
        reply: the node's, when it said yes.
        copies: how often it was sent, when the reply came.

    Args:
        channel: of the thread that asks.
        op: what is asked.
        body: of a control op.
        fields: of the request's header.
    """

    def __init__(
        self, channel: Half[Any], op: Op, body: Body | None = None, **fields: Any
    ) -> None:
        super().__init__(channel, 0, 1)
        self.reply: Reply | None = None
        self.copies = 0
        self._op = op
        self._ask = partial(Message, op, body=body, limit=1, **fields)

    def next_message(self) -> Message:
        """Make the request."""
        return self._ask()

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
            name = self._op.name.lower()
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
