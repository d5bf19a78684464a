"""A batch over the wire: many small changes in each request, some requests at a time.

A request that stops at a refused item is followed by its rest, which the changes that come
later in the batch must not overtake: the requests behind it are recalled and cut anew. Only an
interrupted batch, of which nothing more is begun, may lack that rest before what was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from smbox.errors import SmboxError
from smbox.paths.base import BatchItem, ByteRange
from smbox.paths.link import Link
from smbox.paths.link_work import WorkCall
from smbox.paths.remote_work import RemoteWork, op_of, scale_of
from smbox.wire import batch
from smbox.wire.codec import Reply, Request
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import Op

UNDER_WAY_MAX: Final = 4
"""Requests that may be unanswered: the node works on one while the next is being written."""


class RemoteBatch(RemoteWork):
    """Changes in order; the first refusal is raised, the others still run.

    Args:
        link: of the thread that begins it.
        items: each within one stripe.
    """

    def __init__(self, link: Link, items: Sequence[BatchItem]) -> None:
        super().__init__(link, 0, len(items))
        self._items = items
        self._refusals: set[int] = set()
        self._hands_on = any(item.sink is not None for item in items)

    @property
    def has_more(self) -> bool:
        """Whether later works have to wait: to the end, for a refusal may cut more requests."""
        return not self.is_done

    @property
    def unseen(self) -> SmboxError | None:
        """What the first refused change failed with."""
        return self.error

    def _call(self, first: int) -> WorkCall | None:
        if len(self._calls) >= UNDER_WAY_MAX or first >= self._limit:
            return None
        items = tuple(self._fitting(first))
        frame = batch.pack_items(items)
        request = Request(Op.BATCH, nbytes=len(items), payload=frame, items=items)
        return WorkCall(request, len(items), work=self, first=first, limit=first + len(items))

    def _fitting(self, first: int) -> Iterator[batch.Item]:
        """Give the items from ``first`` on that fit in one request; at least one."""
        sources = answers = REQUEST_NBYTES_MAX
        for item in self._items[first : first + batch.ITEMS_MAX]:
            packed = _packed(item)
            sources -= len(packed.source)
            answers -= packed.answer_nbytes
            if min(sources, answers) < 0:
                return
            yield packed

    def _take(self, first: int, limit: int, payload: Buffer) -> None:
        """Hand on item by item: a sink knows its last piece again, and none before."""
        at = 0
        old = np.frombuffer(payload, np.uint8)
        for index, item in enumerate(self._items[first:limit], first):
            if item.sink is not None:
                nbytes = item.operation.limit - item.operation.first
                if index >= self._at:
                    item.sink(item.operation.first, item.operation.limit, old[at : at + nbytes])
                at += nbytes
            self._at = max(self._at, index + 1)

    def _refused(self, call: WorkCall, reply: Reply) -> None:
        """Go on behind the refused change; what it was refused for is raised at the end."""
        while self._calls[-1] is not call:
            self._link.recall(self._calls[-1])
            self._calls.pop()
        refused = call.first + call.done
        if reply.error is not None:
            self._take(call.first, refused, reply.error.old)
        self.error = self.error or reply.raised()
        self._refusals.add(refused)
        self._at = refused + 1

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges that are certainly done, change by change."""
        done = (n for n in range(self._at) if n not in self._refusals)
        operations = [self._items[index].operation for index in done]
        return [(operation.first, operation.limit) for operation in operations]


def _packed(item: BatchItem) -> batch.Item:
    operation = item.operation
    return batch.Item(
        op_of(operation.kernel, item.sink),
        operation.kernel,
        int(item.info.address) + operation.first,
        operation.limit - operation.first,
        operation.source.data,  # copied into the frame, and not read again
        scale_of(operation, item.info),
    )
