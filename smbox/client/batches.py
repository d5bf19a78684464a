"""Batches over the wire: many small changes in each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smbox.client.channel import Channel
from smbox.client.message import Message
from smbox.client.transfer import ChannelWork, op_of, scale_of
from smbox.errors import SmboxError
from smbox.paths.base import BatchItem
from smbox.paths.work import ByteRange
from smbox.wire import operands
from smbox.wire.codec import Reply
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import Op


class Batch(ChannelWork):
    """Changes in order, many in each request; the first refusal is raised, the others run.

    Units are items. A request ends at a refused item; what follows it is cut anew.

    Args:
        channel: of the thread that begins it.
        items: each within one stripe.
    """

    is_change = True

    def __init__(self, channel: Channel, items: Sequence[BatchItem]) -> None:
        super().__init__(channel, 0, len(items))
        self._items = items
        self._taken = 0  # items whose old bytes are handed on
        self._refusals: set[int] = set()
        self._first_error: SmboxError | None = None

    def next_message(self) -> Message:
        """Pack as many items as fit into one request."""
        first = self.cut
        items = tuple(self._fitting(first))
        answers = operands.answers_nbytes(items)
        source = sum(len(item.source) for item in items)
        return Message(
            Op.BATCH,
            nbytes=len(items),
            payload=operands.pack_items(items),
            items=items,
            numbers=len(items),
            transfer=self,
            first=first,
            limit=first + len(items),
            source_nbytes=source,
            copied_nbytes=answers and answers + source,
            fills_ring=answers > 0,
        )

    def _fitting(self, first: int) -> Iterator[operands.Item]:
        sources = answers = REQUEST_NBYTES_MAX
        for item in self._items[first : first + operands.ITEMS_MAX]:
            packed = _packed(item)
            sources -= len(packed.source)
            answers -= packed.answer_nbytes
            if min(sources, answers) < 0:
                return
            yield packed

    def take(self, message: Message, reply: Reply) -> None:
        """Hand on the old bytes, item by item."""
        self._hand_on(message.first, message.limit, reply.payload)

    def _hand_on(self, first: int, limit: int, payload: Buffer) -> None:
        at = 0
        old = np.frombuffer(payload, np.uint8)
        for index, item in enumerate(self._items[first:limit], first):
            if item.sink is None:
                continue
            nbytes = _packed(item).answer_nbytes
            if index >= self._taken:
                item.sink(item.operation.first, item.operation.limit, old[at : at + nbytes])
                self._taken = index + 1
            at += nbytes

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """Go on behind the refused change; what it was refused for is raised at the end."""
        at = message.first + done
        if reply.error is not None and not self.is_over:
            self._hand_on(message.first, at, reply.error.old)
        self._refusals.add(at)
        self._first_error = self._first_error or reply.raised()
        self.advance_to(at + 1)
        self.rewind(self.at)

    def advance_to(self, unit: int) -> None:
        """Note that all before an item is done; a refusal is raised once all are."""
        super().advance_to(unit)
        if self.is_done:
            self.error = self.error or self._first_error

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges that are certainly done, change by change."""
        done = (n for n in range(self.at) if n not in self._refusals)
        operations = [self._items[index].operation for index in done]
        return [(operation.first, operation.limit) for operation in operations]

    def outcome(self) -> str:
        """Tell what is known of the effect of the changes that were not refused."""
        found = super().outcome()
        return "partial" if found == "all" and self._refusals else found


def _packed(item: BatchItem) -> operands.Item:
    operation = item.operation
    return operands.Item(
        op_of(operation.kernel, item.sink),
        operation.kernel,
        int(item.info.address) + operation.first,
        operation.limit - operation.first,
        operation.source.data,  # copied into the frame, and not read again
        scale_of(operation, item.info),
        operation.operand,
    )
