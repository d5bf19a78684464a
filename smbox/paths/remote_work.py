"""Changes and reads over the wire: a range cut into requests, replies taken in order.

Requests cover at most 1 or 2 MiB of the region's data, cut at its multiples. A reply is taken
exactly once: the place up to which all is taken moves after the taking, and a sink that was
interrupted before that is called again with the same piece.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from smbox.errors import SmboxError
from smbox.memory.kernels import KERNELS, KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.base import ByteRange, Bytes, Operation, RegionInfo, Sink
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.wire import pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import (
    LONG_NBYTES_MAX,
    NO_SCALE,
    REQUEST_NBYTES_MAX,
    Buffer,
    pack_scale,
)
from smbox.wire.ops import Op
from smbox.wire.status import Status

SETTLE_S: Final = 2.0
"""How long an interrupted change waits for the replies to what is on its way."""

_FETCHES: Final = {KernelCode.ELASTIC: Op.ELASTIC}
_CHANGES: Final = {
    KernelCode.REPLACE: Op.PUT,
    KernelCode.SCATTER_PUT: Op.PUT,
    KernelCode.ELASTIC: Op.ELASTIC,
}


def op_of(kernel: KernelCode, sink: Sink | None) -> Op:
    """Return the op that runs ``kernel``, with the old bytes in its reply for a sink."""
    if sink is None:
        return _CHANGES.get(kernel, Op.ACCUMULATE)
    return _FETCHES.get(kernel, Op.FETCH)


def scale_of(operation: Operation, info: RegionInfo) -> bytes:
    """Write the scale of an operation as the wire wants it for the region's elements."""
    if not KERNELS[operation.kernel].has_scale:
        return NO_SCALE
    kind = info.dtype.kind
    return pack_scale(operation.scale if kind == "float" else int(operation.scale), kind[0])


class RemoteWork:
    """A request of the client over units ``[first, limit)``; subclasses say of what.

    Args:
        link: of the thread that begins it.
        first: first unit.
        limit: behind the last one; an empty work is done.
    """

    def __init__(self, link: Link, first: int, limit: int) -> None:
        self.is_done = first >= limit
        self.error: SmboxError | None = None
        self._link = link
        self._first = first
        self._at = first  # all before is done and taken
        self._limit = limit
        self._calls: deque[WorkCall] = deque()
        self._is_cancelled = False
        self._hands_on = False

    # What the link asks.

    @property
    def has_more(self) -> bool:
        """Whether requests remain to be begun."""
        return self._next() < self._limit and not self.is_done

    def _next(self) -> int:
        return self._calls[-1].limit if self._calls else self._at

    def next_call(self) -> WorkCall | None:
        """Cut the next request; kept here first, so that an interrupt cannot lose it."""
        call = self._call(self._next())
        if call is not None:
            self._calls.append(call)
        return call

    def adopt(self, request: Request) -> WorkCall:
        """Go on with a request of all of it, which is under way; see ``LoneWork``."""
        first, limit = self._first, self._limit
        call = WorkCall(request, request.numbers, work=self, first=first, limit=limit)
        self._calls.append(call)
        return call

    def open_calls(self) -> Iterable[WorkCall]:
        """List the requests without a reply."""
        return [call for call in self._calls if call.reply is None]

    def collect(self) -> None:
        """Take the replies that are there, in order."""
        calls = self._calls
        while calls and not (self.is_done or self._is_cancelled):
            call = calls[0]
            if call.reply is None:
                return
            if call.limit > self._at:
                self._judge(call, call.reply)
            calls.popleft()
        self.is_done = self.is_done or self._at >= self._limit

    def _judge(self, call: WorkCall, reply: Reply) -> None:
        if reply.status is not Status.OK:
            self._refused(call, reply)
            return
        self._take(call.first, call.limit, reply.payload)
        self._at = call.limit

    def fail(self, error: SmboxError) -> None:
        """End with ``error``, unless it has ended."""
        if not self.is_done:
            self.error = error
            self.is_done = True

    @property
    def unseen(self) -> SmboxError | None:
        """What ``flush`` has to tell of: nothing, unless it is a change."""
        return None

    # What subclasses say.

    def _call(self, first: int) -> WorkCall | None:
        """Make the request that begins at ``first``; None: not yet."""
        raise NotImplementedError

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        """Take the reply of ``[first, limit)``; again, after an interrupt."""
        raise NotImplementedError

    def _refused(self, call: WorkCall, reply: Reply) -> None:  # noqa: ARG002 - for subclasses
        """End, because the node said no."""
        self.fail(reply.raised())

    # What the caller asks.

    def advance(self, deadline_s: float) -> bool:
        """Drive the link until this work is done; see ``Work``."""
        if not self.is_done:
            try:
                if not self._link.drive(self, deadline_s):
                    return False
            except BaseException:
                self._link.let_go(self)
                raise
        if self.error is not None:
            self._link.seen(self.error)
            raise self.error
        return True

    def cancel(self) -> None:
        """Begin nothing more, and take nothing more after what has an answer to hand on.

        What of an elastic exchange is at the node moves the center, and x has to move with
        it: so that is waited for, for a moment, or until another interrupt.
        """
        self._limit = self._next()
        try:
            if self._hands_on and self._calls and not self.is_done:
                self._link.drive(self, time.monotonic() + SETTLE_S)
        finally:
            self._is_cancelled = True
            self._link.cancel(self)

    def ranges_done(self) -> list[ByteRange]:
        """List the range that is certainly done."""
        return [(self._first, self._at)] if self._at > self._first else []

    def progress(self) -> int:
        """Return how many replies have come on the link: those before it have their turn."""
        return self._link.answered

    def let_go(self) -> None:
        """Copy what is on its way, and leave the connection that may still be sending it."""
        self._link.let_go(self)

    def outcome(self) -> str:
        """Tell what is known of the effect."""
        if self._at > self._first:
            return "partial"
        return "unknown" if any(call.offers for call in self._calls) else "not-sent"

    def facts(self) -> dict[str, object]:
        """Tell for how long the node has been silent."""
        return {"silent_s": round(self._link.silent_s(), 3)}


class RemoteChange(RemoteWork):
    """A change of a range, and its old bytes for a sink; the Args of ``DataPath.change``."""

    def __init__(
        self, link: Link, info: RegionInfo, operation: Operation, sink: Sink | None
    ) -> None:
        super().__init__(link, operation.first, operation.limit)
        self._address = int(info.address)
        self._operation = operation
        self._sink = sink
        self._op = op_of(operation.kernel, sink)
        self._unit = pieces.unit_of(self._op)
        self._scale = scale_of(operation, info)
        self._is_whole = KERNELS[operation.kernel].is_whole
        self._hands_on = sink is not None

    @property
    def unseen(self) -> SmboxError | None:
        """What the change failed with."""
        return self.error

    def _call(self, first: int) -> WorkCall:
        operation = self._operation
        limit = pieces.end_of(first, operation.limit, self._unit_at(first))
        source = operation.source
        if not self._is_whole:
            source = source[first - operation.first : limit - operation.first]
        request = Request(
            self._op,
            address=self._address + first,
            nbytes=limit - first,
            kernel=operation.kernel,
            scale=self._scale,
            payload=source.data,
        )
        numbers = pieces.count(first, limit, STRIPE_NBYTES)
        return WorkCall(request, numbers, work=self, first=first, limit=limit, is_borrowed=True)

    def _unit_at(self, first: int) -> int:
        """Return where the request that begins at ``first`` is cut.

        What is answered by bytes goes one way, is computed with, and comes back: at either end
        of the range nothing else is under way meanwhile, so there the requests are smaller.
        """
        operation = self._operation
        is_end = min(first - operation.first, operation.limit - first - 1) < LONG_NBYTES_MAX
        return REQUEST_NBYTES_MAX if self._sink is not None and is_end else self._unit

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        if self._sink is not None:
            self._sink(first, limit, np.frombuffer(payload, np.uint8))

    def _refused(self, call: WorkCall, reply: Reply) -> None:
        """End, after taking what was done before the refusal."""
        if call.done and reply.error is not None:
            limit = min(call.limit, (call.first // STRIPE_NBYTES + call.done) * STRIPE_NBYTES)
            self._take(call.first, limit, reply.error.old)
            self._at = limit
        self.fail(reply.raised())


class RemoteRead(RemoteWork):
    """A read of a range into an array; the Args of ``DataPath.read``."""

    def __init__(
        self, link: Link, info: RegionInfo, first: int, limit: int, out: Bytes
    ) -> None:
        super().__init__(link, first, limit)
        self._address = int(info.address)
        self._out = out

    def _call(self, first: int) -> WorkCall | None:
        limit = pieces.end_of(first, self._limit, REQUEST_NBYTES_MAX)
        request = Request(Op.GET, address=self._address + first, nbytes=limit - first)
        return WorkCall(request, work=self, first=first, limit=limit)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        self._out[first - self._first : limit - self._first] = np.frombuffer(payload, np.uint8)

    def outcome(self) -> str:
        """Tell how much was read; reading changes nothing."""
        return "partial" if self._at > self._first else "not-sent"
