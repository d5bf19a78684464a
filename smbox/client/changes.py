"""Changes over the wire: of a range, of a range with a signal, and batches of small changes.

docs/protocol.md defines the requests.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from smbox.array import as_bytes
from smbox.client.channel import Channel
from smbox.client.transfer import Message, Transfer, exact_bytes
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.orders import Output
from smbox.paths.requests import ByteRange, Changes, Copying, Operation, Signalled
from smbox.wire import operands, ops
from smbox.wire.codec import Reply
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.ops import Op

_CHANGES: Final[dict[int, Op]] = {
    KernelCode.REPLACE: Op.PUT,
    KernelCode.SCATTER_PUT: Op.PUT,
    KernelCode.ELASTIC: Op.ELASTIC,
}


def op_of(operation: Operation) -> Op:
    """Return the op for an operation; its reply has the old bytes if there is a sink.

    ELASTIC with a narrow operand returns the moved operand, which does not give the delta.
    """
    if isinstance(operation, Copying):
        return Op.FROM
    if operation.states:
        return Op.UPDATE
    sink = operation.sink
    is_narrow_delta = operation.operand and sink is not None and sink.output == Output.DELTA
    if sink is None or (operation.kernel == KernelCode.ELASTIC and not is_narrow_delta):
        return _CHANGES.get(operation.kernel, Op.ACCUMULATE)
    return Op.FETCH


class Change(Transfer):
    """A change of a range of a region's data; every stripe has a number.

    Args:
        channel: of the thread that begins it.
        request: what is done; its source is not copied.
    """

    is_change = True

    def __init__(self, channel: Channel, request: Operation) -> None:
        super().__init__(channel, request.first, request.limit)
        self._operation = request
        self._op = op_of(request)
        self._source = as_bytes(request.source).data

    def payload(self, first: int, limit: int) -> Buffer:
        """Return the second frame of the request for ``[first, limit)``."""
        operation, part = self._operation, self._source
        if isinstance(operation, Copying):
            offset = operation.other_first - operation.first
            return operands.pack_address(int(operation.other.address) + offset + first)
        if (first, limit) != (operation.first, operation.limit):
            part = operation.operand_of(first, limit).data
        if operation.parameters is None:
            return part
        states = [int(state.address) for state in operation.states]
        return operands.pack_update(states, operation.parameters.tolist(), part)

    def next_message(self) -> Message:
        """Make the next request."""
        first, op, operation = self.cut, self._op, self._operation
        limit = ops.end_of(op, first, operation.limit)
        return Message(
            op,
            address=int(operation.info.address) + first,
            nbytes=limit - first,
            kernel=operation.kernel,
            scale=operation.scale,
            operand=operation.operand,
            payload=self.payload(first, limit),
            numbers=ops.count(first, limit, STRIPE_NBYTES),
            limit=limit,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Pass the old bytes to the sink."""
        sink = self._operation.sink
        if sink is not None:
            sink(message.first, message.limit, np.frombuffer(reply.payload, np.uint8))

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """Fail, after passing on the old bytes of what was done before the refusal."""
        sink, error = self._operation.sink, reply.error
        if done and sink is not None and error is not None and not self.is_cancelled:
            first, limit = message.first, self.end_of(message, done)
            nbytes = ops.answer_nbytes(self._op, limit - first, self._operation.operand)
            sink(first, limit, exact_bytes(error.old, nbytes))
        super().refused(message, reply, done)

    def end_of(self, message: Message, done: int) -> int:
        """Return the byte behind the first ``done`` stripes of a message."""
        return min(message.limit, (message.first // STRIPE_NBYTES + done) * STRIPE_NBYTES)


class SignalledChange(Change):
    """The requests of a change and, as the last unit, the request of a counter's change.

    All are sent without waiting for replies. The node executes them in order, and answers GAP
    to the requests behind a refused change (docs/protocol.md, "Numbers"): so it never applies
    the signal without all of the change.
    """

    def __init__(self, channel: Channel, request: Signalled) -> None:
        super().__init__(channel, request)
        self._signal = Change(channel, request.signal)
        self.limit += 1

    def next_message(self) -> Message:
        """Make the next request."""
        if self.cut < self._operation.limit:
            return super().next_message()
        message = self._signal.next_message()
        message.limit = self.limit
        return message

    def ranges_done(self) -> list[ByteRange]:
        """Return the range of the change that is certainly done."""
        limit = min(self.at, self._operation.limit)
        return [(self.first, limit)] if limit > self.first else []


class Batch(Transfer):
    """Changes in order, many in each request; units are items.

    A request ends at a refused item, and the items behind it are sent again in new requests.
    The error of the first refused item is raised once all have ended.

    Args:
        channel: of the thread that begins it.
        request: what is done.
    """

    is_change = True

    def __init__(self, channel: Channel, request: Changes) -> None:
        super().__init__(channel, request.first, request.limit)
        self._operations = request.operations
        self._packed = [_packed(operation) for operation in request.operations]
        self._taken = 0  # items whose sinks have received the old bytes
        self._refusals: set[int] = set()

    def next_message(self) -> Message:
        """Make a request of as many items as fit."""
        first = limit = self.cut
        sources = answers = 0
        for item in self._packed[first : first + operands.ITEMS_MAX]:
            sources_after = sources + len(item.source)
            answers_after = answers + item.answer_nbytes
            if max(sources_after, answers_after) > REQUEST_NBYTES_MAX:
                break
            sources, answers = sources_after, answers_after
            limit += 1
        items = tuple(self._packed[first:limit])
        return Message(
            Op.BATCH,
            nbytes=len(items),
            payload=operands.pack_items(items),
            items=items,
            numbers=len(items),
            limit=limit,
            copied_nbytes=answers and answers + sources,
        )

    def take(self, message: Message, reply: Reply) -> None:
        """Pass the old bytes to the sinks of the items."""
        self._pass_on(message.first, message.limit, reply.payload)

    def _pass_on(self, first: int, limit: int, payload: Buffer) -> None:
        expected = sum(each.answer_nbytes for each in self._packed[first:limit])
        at, old = 0, exact_bytes(payload, expected)
        for index in range(first, limit):
            operation, nbytes = self._operations[index], self._packed[index].answer_nbytes
            if operation.sink is not None and index >= self._taken:
                operation.sink(operation.first, operation.limit, old[at : at + nbytes])
                self._taken = index + 1
            at += nbytes

    def refused(self, message: Message, reply: Reply, done: int) -> None:
        """Continue behind the refused change; its error is raised at the end."""
        at = message.first + done
        if reply.error is not None and not self.is_cancelled:
            self._pass_on(message.first, at, reply.error.old)
        self._refusals.add(at)
        self.late_error = self.late_error or reply.to_error()
        self.advance_to(at + 1)
        self.rewind(self.at)

    def ranges_done(self) -> list[ByteRange]:
        """Return the ranges that are certainly done, change by change."""
        done = (n for n in range(self.at) if n not in self._refusals)
        operations = [self._operations[index] for index in done]
        return [(operation.first, operation.limit) for operation in operations]

    def outcome(self) -> str:
        """Return the known outcome; "partial" at best if a change was refused."""
        found = super().outcome()
        return "partial" if found == "all" and self._refusals else found


def _packed(operation: Operation) -> operands.Item:
    return operands.Item(
        op_of(operation),
        operation.kernel,
        int(operation.info.address) + operation.first,
        operation.limit - operation.first,
        as_bytes(operation.source).data,  # copied into the frame, and not read again
        operation.scale,
        operation.operand,
    )
