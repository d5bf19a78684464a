"""Single requests, waited for at once; and waiting for a version, as a row of them."""

from __future__ import annotations

import time
from typing import Final

from smbox.client.channel import Channel
from smbox.client.transfer import Call
from smbox.errors import RequestTimeoutError
from smbox.paths.work import RegionInfo, Waiting
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import Op

WAIT_MS: Final = 500
"""How long one WAIT may be parked: less than the usual patience of a channel (1 s), so that
a region that does not change is not taken for a node that does not answer."""

POLL_MS: Final = 20
"""The same for a caller that looks and goes on, and may look again at once."""

VERSION_MAX: Final = (1 << 64) - 1
"""The largest version that a header can carry; no region ever reaches it."""


def ask(channel: Channel, request: Request, timeout_s: float) -> Reply:
    """Send one request that is no change, and wait for its reply.

    Raises:
        RequestTimeoutError: none came in time; the request is not sent again.
        SmboxError: the node said no.
    """
    return finish(Call(channel, request), request.op, timeout_s)


def finish(call: Call, op: Op, timeout_s: float) -> Reply:
    """Wait for the reply to a call; as ``ask``."""
    try:
        call.advance(time.monotonic() + timeout_s)
    finally:
        if not call.is_done:
            call.cancel()
    if call.reply is None:
        name = op.name.lower()
        raise RequestTimeoutError(
            f"{name} was not answered in time",
            op=name,
            timeout_s=timeout_s,
            outcome="unknown" if call.is_begun else "none",
            **call.facts(),
        )
    return call.reply


class VersionWait(Waiting):
    """A wait for a region's version, as a row of short WAITs; the Args of ``wait_version``."""

    def __init__(self, channel: Channel, info: RegionInfo, version: int) -> None:
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
            self._is_reached = call.reply is not None and call.reply.version >= self._wanted
            if time.monotonic() >= deadline_s:
                break
        return self._is_reached

    def _begin(self, deadline_s: float) -> Call:
        """Make a slice that ends with the caller's patience: others of the thread follow."""
        left_s = max(0.0, deadline_s - time.monotonic())
        wait_ms = int(min(WAIT_MS, 1000 * left_s)) or POLL_MS
        version = min(max(self._wanted, 0), VERSION_MAX)
        request = Request(Op.WAIT, address=self._address, nbytes=wait_ms, version=version)
        return Call(self._channel, request)

    def cancel(self) -> None:
        """Wait no more."""
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None

    def facts(self) -> dict[str, object]:
        """Tell what was waited for."""
        return {"wanted": self._wanted}
