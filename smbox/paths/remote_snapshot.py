"""Snapshots over the wire: copied at the node by one request, then read out of the copy.

The work has two parts that follow each other: the request for the copy, and the reads of it.
Later works wait until its last part has begun.
"""

from __future__ import annotations

import numpy as np

from smbox.errors import PeerLostError, RegionFreedError, SmboxError
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_work import RemoteWork
from smbox.paths.special import Lease
from smbox.paths.work import ByteRange, Bytes, RegionInfo
from smbox.wire import operands, pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import Op


class RemoteSnapshot(RemoteWork):
    """A read of a range at one moment; units are the request itself, then bytes out.

    Args:
        link: of the thread that begins it.
        info: the region.
        first: byte of its data.
        limit: byte behind the last.
        out: ``u8[limit - first]``.
        lease: of the staging region that takes the copy; ends with the work.
    """

    def __init__(
        self, link: Link, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease
    ) -> None:
        super().__init__(link, 0, 1 + limit - first)
        self._address = int(info.address) + first
        self._out = out
        self._lease = lease
        self._stage = int(lease.info.address)

    def _call(self, first: int) -> WorkCall | None:
        if first == 0:
            return WorkCall(self._copy(), work=self, first=0, limit=1)
        return None if self._at == 0 else self._call_out(first)

    def _copy(self) -> Request:
        return Request(
            Op.SNAPSHOT,
            address=self._address,
            nbytes=self._out.size,
            payload=operands.pack_address(self._stage),
        )

    def _call_out(self, first: int) -> WorkCall:
        at = first - 1
        end = pieces.end_of(at, self._limit - 1, REQUEST_NBYTES_MAX)
        request = Request(Op.GET, address=self._stage + at, nbytes=end - at)
        return WorkCall(request, work=self, first=first, limit=end + 1)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        if first > 0:
            self._out[first - 1 : limit - 1] = np.frombuffer(payload, np.uint8)

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
        """Begin nothing more; nobody uses the staging again."""
        self._lease.drop()
        super().cancel()

    def _refused(self, call: WorkCall, reply: Reply) -> None:  # noqa: ARG002 - all ends
        error: SmboxError = reply.raised()
        gone = error.facts.get("address") if isinstance(error, RegionFreedError) else None
        if self._lease.holds(gone):
            error = PeerLostError(
                "the node has lost the copy: it was restarted, or we were silent",
                lost="staging",
                outcome="not-sent",
            )
        self.fail(error)

    def ranges_done(self) -> list[ByteRange]:
        """Name no range: it is of one moment only as a whole."""
        return []

    def outcome(self) -> str:
        """Tell that reading changes nothing."""
        return "not-sent"
