"""Single requests over the wire: whatever is one message and its reply, and waiting so."""

from __future__ import annotations

import time
from typing import Final

from smbox.errors import RequestTimeoutError
from smbox.paths.base import RegionInfo
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_work import RemoteWork
from smbox.paths.work import Waiting
from smbox.wire.codec import Reply, Request
from smbox.wire.header import Buffer
from smbox.wire.ops import Op
from smbox.wire.status import Status

WAIT_MS: Final = 500
"""How long one WAIT may be parked: less than the usual patience of a link (1 s), so that
a region that does not change is not taken for a node that does not answer."""


POLL_MS: Final = 20
"""The same for a caller that looks and goes on, and may look again at once."""

VERSION_MAX: Final = (1 << 64) - 1
"""The largest version that a header can carry; no region ever reaches it."""


class RemoteCall(RemoteWork):
    """One request that takes no numbers.

    Attributes:
        answer: its reply, when the node said yes.
        offers: how often it was sent, or may have been, when the reply came.

    Args:
        link: that carries it.
        request: anything but a change.
    """

    def __init__(self, link: Link, request: Request) -> None:
        super().__init__(link, 0, 1)
        self._request = request
        self.answer: Reply | None = None
        self.offers = 0

    def _call(self, first: int) -> WorkCall:
        return WorkCall(self._request, work=self, first=first, limit=1)

    def _judge(self, call: WorkCall, reply: Reply) -> None:
        self.offers = call.offers
        if reply.status is Status.OK:
            self.answer = reply
        super()._judge(call, reply)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        """Nothing more to take."""

    def reply(self, timeout_s: float) -> Reply:
        """Begin the request and wait for its reply.

        Raises:
            RequestTimeoutError: none came in time; the request is not sent again.
            SmboxError: the node said no.
        """
        self._link.begin(self)
        try:
            self.advance(time.monotonic() + timeout_s)
        finally:
            if not self.is_done:
                self.cancel()
        if self.answer is None:
            op = self._request.op.name.lower()
            raise RequestTimeoutError(
                f"{op} was not answered in time",
                op=op,
                timeout_s=timeout_s,
                outcome=self.outcome(),
                **self.facts(),
            )
        return self.answer


class RemoteWait(Waiting):
    """A wait for a region's version, as a row of short WAITs; the Args of ``wait_version``."""

    def __init__(self, link: Link, info: RegionInfo, version: int) -> None:
        self._link = link
        self._address = int(info.address)
        self._wanted = version  # any whole number: what a header cannot say is never reached
        self._seen = 0
        self._slice: RemoteCall | None = None
        self._is_reached = False

    def advance(self, deadline_s: float) -> bool:
        """Wait at the node until the version is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
        """
        while True:
            if self._is_reached:
                return True
            under_way = self._slice
            if under_way is None:
                under_way = self._slice = self._begin(deadline_s)
            if not self._ended(under_way, deadline_s):
                return False
            self._slice = None
            if time.monotonic() >= deadline_s:
                return self._is_reached

    def _begin(self, deadline_s: float) -> RemoteCall:
        """Begin a slice that ends with the caller's patience: others of the thread follow."""
        left_s = max(0.0, deadline_s - time.monotonic())
        wait_ms = int(min(WAIT_MS, 1000 * left_s)) or POLL_MS
        version = min(max(self._wanted, 0), VERSION_MAX)
        request = Request(Op.WAIT, address=self._address, nbytes=wait_ms, version=version)
        call = RemoteCall(self._link, request)
        self._link.begin(call)
        return call

    def _ended(self, call: RemoteCall, deadline_s: float) -> bool:
        try:
            if not call.advance(deadline_s):
                return False
        except RequestTimeoutError:
            return True  # the node's: the version was not reached within this slice
        if call.answer is not None:
            self._seen = call.answer.version
            self._is_reached = self._seen >= self._wanted
        return True

    def cancel(self) -> None:
        """Wait no more."""
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None

    def facts(self) -> dict[str, object]:
        """Tell what was waited for."""
        return {"wanted": self._wanted}
