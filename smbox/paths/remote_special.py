"""Rows, region to region and optimizers' steps over the wire."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smbox.errors import SmboxError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_snapshot import RemoteSnapshot
from smbox.paths.remote_work import RemoteRead, RemoteWork, scale_of
from smbox.paths.special import Lease, OptimizerStep, RowsWanted
from smbox.paths.work import Bytes, Operation, RegionInfo, Work
from smbox.wire import operands, pieces
from smbox.wire.codec import Reply, Request
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import Op

BeginOn = Callable[[Link, RemoteWork], RemoteWork]


class RemoteSpecial:
    """SpecialPath over messages.

    Args:
        link: returns the link of the calling thread.
        begin: puts a work in line on its link.
    """

    def __init__(self, link: Callable[[], Link], begin: BeginOn) -> None:
        self._link = link
        self._begin = begin

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Begin to read rows; see SpecialPath."""
        link = self._link()
        return self._begin(link, RemoteGather(link, info, wanted))

    def change_from(
        self, info: RegionInfo, operation: Operation, source: RegionInfo, source_first: int
    ) -> Work:
        """Begin a change from another region; see SpecialPath."""
        link = self._link()
        ahead = int(source.address) + source_first - operation.first
        template = Request(Op.FROM, kernel=operation.kernel, scale=scale_of(operation, info))

        def payload(first: int, _limit: int) -> bytes:
            return operands.pack_address(ahead + first)

        work = RemoteStriped(link, info, (operation.first, operation.limit), template, payload)
        return self._begin(link, work)

    def step(self, info: RegionInfo, step: OptimizerStep) -> Work:
        """Begin a step of an optimizer; see SpecialPath."""
        link = self._link()
        siblings = [int(sibling.address) for sibling in step.siblings]
        gradient = step.gradient.reshape(-1).view(np.uint8)

        def payload(first: int, limit: int) -> bytes:
            return operands.pack_update(siblings, step.parameters, gradient[first:limit].data)

        template = Request(Op.UPDATE, kernel=step.optimizer)
        return self._begin(link, RemoteStriped(link, info, (0, info.nbytes), template, payload))

    def snapshot(
        self, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease | None
    ) -> Work:
        """Begin to read a range at one moment; see SpecialPath."""
        link = self._link()
        if lease is None:
            return self._begin(link, RemoteRead(link, info, first, limit, out))
        return self._begin(link, RemoteSnapshot(link, info, first, limit, out, lease))

    def stages_snapshots(self, first: int, limit: int) -> bool:
        """Tell whether more than one stripe has to be of one moment."""
        return pieces.count(first, limit, STRIPE_NBYTES) > 1


class RemoteStriped(RemoteWork):
    """A change of a range that brings no source of its own; a number for each stripe.

    Args:
        link: of the thread that begins it.
        info: the region.
        span: first byte of its data, and the byte behind the last.
        template: op, kernel and scale of its requests.
        payload: makes the operand of the request for ``[first, limit)``.
    """

    def __init__(
        self,
        link: Link,
        info: RegionInfo,
        span: tuple[int, int],
        template: Request,
        payload: Callable[[int, int], Buffer],
    ) -> None:
        super().__init__(link, *span)
        self._address = int(info.address)
        self._template = template
        self._payload = payload

    @property
    def unseen(self) -> SmboxError | None:
        """What the change failed with."""
        return self.error

    def _call(self, first: int) -> WorkCall:
        limit = pieces.end_of(first, self._limit, REQUEST_NBYTES_MAX)
        request = Request(
            self._template.op,
            address=self._address + first,
            nbytes=limit - first,
            kernel=self._template.kernel,
            scale=self._template.scale,
            payload=self._payload(first, limit),
        )
        numbers = pieces.count(first, limit, STRIPE_NBYTES)
        return WorkCall(request, numbers, work=self, first=first, limit=limit)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        """Nothing to take."""

    def _refused(self, call: WorkCall, reply: Reply) -> None:
        """End; what was done before the refusal stays."""
        if call.done:
            stripes = call.first // STRIPE_NBYTES + call.done
            self._at = min(call.limit, stripes * STRIPE_NBYTES)
        self.fail(reply.raised())


class RemoteGather(RemoteWork):
    """A read of rows, as many in one request as its answer holds; units are rows."""

    def __init__(self, link: Link, info: RegionInfo, wanted: RowsWanted) -> None:
        super().__init__(link, 0, wanted.places.size)
        self._address = int(info.address) + wanted.first
        self._wanted = wanted
        self._rows = min(REQUEST_NBYTES_MAX // wanted.row_nbytes, operands.PLACES_MAX)

    def _call(self, first: int) -> WorkCall:
        wanted = self._wanted
        limit = min(self._limit, first + self._rows)
        places = wanted.places[first:limit].astype("<i8", copy=False)
        request = Request(
            Op.GATHER,
            address=self._address,
            nbytes=(limit - first) * wanted.row_nbytes,
            payload=operands.pack_gather(wanted.row_nbytes, places.tobytes()),
        )
        return WorkCall(request, work=self, first=first, limit=limit)

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        found = np.frombuffer(payload, np.uint8).reshape(limit - first, -1)
        self._wanted.out[first:limit] = found

    def ranges_done(self) -> list[tuple[int, int]]:
        """Name no range: rows are none."""
        return []

    def outcome(self) -> str:
        """Tell that reading changes nothing."""
        return "not-sent"
