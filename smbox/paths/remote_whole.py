"""Operations on whole ranges over the wire: staged, then done at the node in one request.

A work here has three parts that follow each other: bytes into the staging region, the one
request that matters, bytes out of it. Later works wait until its last part has begun.
"""

from __future__ import annotations

import numpy as np

from smbox.errors import PeerLostError, RegionFreedError, SmboxError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_work import RemoteWork, scale_of
from smbox.paths.special import Lease
from smbox.paths.work import ByteRange, Bytes, Operation, RegionInfo, Sink
from smbox.wire import operands, pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import LONG_NBYTES_MAX, REQUEST_NBYTES_MAX, Buffer
from smbox.wire.operands import Wide
from smbox.wire.ops import Op


class StagedWork(RemoteWork):
    """A work with staging; units are bytes in, the request itself, bytes out.

    Args:
        link: of the thread that begins it.
        lease: of the staging; ends with the work.
        put_nbytes: how many bytes go in.
        get_nbytes: how many come out, from behind those.
    """

    _changes = True

    def __init__(self, link: Link, lease: Lease, put_nbytes: int, get_nbytes: int) -> None:
        super().__init__(link, 0, put_nbytes + 1 + get_nbytes)
        self._lease = lease
        self._stage = int(lease.info.address)
        self._put_nbytes = put_nbytes

    def _put(self, first: int, limit: int) -> Buffer:
        """Return the bytes that go in."""
        raise NotImplementedError

    def _middle(self) -> Request:
        """Make the request that matters."""
        raise NotImplementedError

    def _got(self, first: int, limit: int, payload: Buffer) -> None:
        """Take the bytes that came out, counted from the first of them."""
        raise NotImplementedError

    @property
    def _is_over_the_middle(self) -> bool:
        return self._at > self._put_nbytes

    def _call(self, first: int) -> WorkCall | None:
        middle = self._put_nbytes
        if first < middle:
            return self._call_in(first)
        if first == middle:
            if self._calls:
                return None  # a refusal of what goes in must come first
            request = self._middle()
            numbers = int(request.op is Op.WIDE)
            return WorkCall(request, numbers, work=self, first=first, limit=first + 1)
        if not self._is_over_the_middle:
            return None
        return self._call_out(first)

    def _call_in(self, first: int) -> WorkCall:
        limit = pieces.end_of(first, self._put_nbytes, LONG_NBYTES_MAX)
        request = Request(
            Op.PUT,
            address=self._stage + first,
            nbytes=limit - first,
            kernel=KernelCode.REPLACE,
            payload=self._put(first, limit),
        )
        numbers = pieces.count(first, limit, STRIPE_NBYTES)
        return WorkCall(request, numbers, work=self, first=first, limit=limit, is_borrowed=True)

    def _call_out(self, first: int) -> WorkCall:
        at = first - 1
        end = pieces.end_of(at, self._limit - 1, REQUEST_NBYTES_MAX)
        request = Request(Op.GET, address=self._stage + at, nbytes=end - at)
        return WorkCall(request, work=self, first=first, limit=end + 1)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        ahead = self._put_nbytes + 1
        if first >= ahead:
            self._got(first - ahead, limit - ahead, payload)

    def collect(self) -> None:
        """Take the replies that are there; the lease ends with the last one."""
        super().collect()
        if self.is_done and self.error is None and not self._is_cancelled:
            self._lease.give()

    def fail(self, error: SmboxError) -> None:
        """End with ``error``, unless it has ended; nobody uses the staging again."""
        super().fail(error)
        self._lease.drop()

    def cancel(self) -> None:
        """Begin nothing more; what is on its way into the staging meets nobody there."""
        self._lease.drop()
        super().cancel()

    def _refused(self, call: WorkCall, reply: Reply) -> None:  # noqa: ARG002 - all ends
        error: SmboxError = reply.raised()
        gone = error.facts.get("address") if isinstance(error, RegionFreedError) else None
        if self._lease.holds(gone):
            done = self._changes and self._is_over_the_middle
            error = PeerLostError(
                "the node has lost what was staged: it was restarted, or we were silent"
                + ("; it is done, but its old contents are gone" if done else ""),
                lost="staging",
                outcome="unknown" if done else "not-sent",
            )
        self.fail(error)


class RemoteWhole(StagedWork):
    """A change that is all or nothing; the Args of ``SpecialPath.change_whole``."""

    def __init__(
        self,
        link: Link,
        info: RegionInfo,
        operation: Operation,
        sink: Sink | None,
        lease: Lease,
    ) -> None:
        self._nbytes = operation.limit - operation.first
        super().__init__(link, lease, self._nbytes, 0 if sink is None else self._nbytes)
        self._info = info
        self._operation = operation
        self._sink = sink
        self._hands_on = sink is not None

    @property
    def unseen(self) -> SmboxError | None:
        """What the change failed with."""
        return self.error

    def _put(self, first: int, limit: int) -> Buffer:
        return self._operation.source[first:limit].data

    def _middle(self) -> Request:
        operation = self._operation
        old = 0 if self._sink is None else self._stage + self._nbytes
        return Request(
            Op.WIDE,
            address=int(self._info.address) + operation.first,
            nbytes=self._nbytes,
            kernel=operation.kernel,
            scale=scale_of(operation, self._info),
            payload=operands.pack_wide(Wide(self._stage, old)),
        )

    def _got(self, first: int, limit: int, payload: Buffer) -> None:
        if self._sink is not None:
            begin = self._operation.first
            self._sink(begin + first, begin + limit, np.frombuffer(payload, np.uint8))

    def _stop_at(self) -> int:
        """Stop before the change, or, once it was begun, when its old bytes are handed on."""
        begun = self._next()
        return self._limit if begun > self._nbytes and self._hands_on else begun

    def ranges_done(self) -> list[ByteRange]:
        """List the whole range, or nothing."""
        operation = self._operation
        return [(operation.first, operation.limit)] if self._is_over_the_middle else []

    def outcome(self) -> str:
        """Tell what is known of the effect; until the request itself is sent, nothing is."""
        if self._is_over_the_middle:
            return "partial"
        offered = any(call.offers for call in self._calls if call.first == self._nbytes)
        return "unknown" if offered else "not-sent"


class RemoteSnapshot(StagedWork):
    """A read of a range at one moment; the Args of ``SpecialPath.read_whole``."""

    _changes = False

    def __init__(
        self, link: Link, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease
    ) -> None:
        super().__init__(link, lease, 0, limit - first)
        self._address = int(info.address) + first
        self._out = out

    def _middle(self) -> Request:
        return Request(
            Op.SNAPSHOT,
            address=self._address,
            nbytes=self._out.size,
            payload=operands.pack_address(self._stage),
        )

    def _got(self, first: int, limit: int, payload: Buffer) -> None:
        self._out[first:limit] = np.frombuffer(payload, np.uint8)

    def ranges_done(self) -> list[ByteRange]:
        """Name no range: it is of one moment only as a whole."""
        return []

    def outcome(self) -> str:
        """Tell that reading changes nothing."""
        return "not-sent"
