"""Batch: many small changes in few round trips; not a transaction."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from smbox import verbs
from smbox.array import typed_array
from smbox.errors import ConfigError
from smbox.memory.orders import Output, address_of
from smbox.paths.pair import PathPair
from smbox.paths.requests import Changes, Operation
from smbox.region import Region


class Batch:
    """Many small changes, added in a ``with`` block, and sent in few round trips at its end.

    Each change is checked when it is added. Its arrays must not be modified until the block
    has ended; arrays that are not contiguous are copied when they are added. An array that a
    change writes (x of ``elastic``, ``delta``, the result of ``fetch_and_op``) must not share
    memory with an array of a later change: that is a ConfigError. If the block raises, nothing
    is sent. A batch is not a transaction: each change is a commit of its own, so another client
    may see some before others, and if one fails, the others still happen. Not thread-safe.

    Args:
        paths: paths to the node, shared with the box.
        timeout_s: seconds that the entire batch may take; None: the timeout of the box.

    Raises:
        ConfigError: ``timeout_s`` is not a number of seconds.
    """

    def __init__(self, paths: PathPair, timeout_s: float | None = None) -> None:
        self._paths = paths
        paths.seconds(timeout_s)  # before the first change is added
        self._timeout_s = timeout_s
        self._operations: list[Operation] = []
        self._written: list[tuple[int, int]] = []  # memory that changes write, sorted
        self._is_over: bool | None = None  # before the block

    def put(self, region: Region, x: Any) -> None:
        """Add a ``Region.put`` of ``x`` to the batch."""
        self._add(verbs.put(_checked(region), x), x)

    def accumulate(self, region: Region, x: Any, scale: float = 1.0, op: str = "sum") -> None:
        """Add a ``Region.accumulate`` of ``x`` to the batch."""
        self._add(verbs.accumulate(_checked(region), x, scale, op), x)

    def elastic(self, region: Region, x: Any, moving_rate: float, delta: Any = None) -> Any:
        """Add a ``Region.elastic`` to the batch.

        Returns:
            ``delta``. It is filled, or without a delta x is moved, when the block ends.
        """
        self._add(verbs.elastic(_checked(region), x, moving_rate, delta), x)
        return delta

    def fetch_and_op(
        self, region: Region, x: Any, op: str = "sum", scale: float = 1.0
    ) -> NDArray[Any]:
        """Add a ``Region.fetch_and_op`` to the batch.

        Returns:
            An array that is filled with the old contents when the block ends.
        """
        old = np.empty(_checked(region).shape, region.dtype)
        self._add(verbs.fetch(region, x, op, scale, old), x)
        return old

    def _add(self, operation: Operation, x: Any) -> None:
        if self._is_over is not False:
            raise ConfigError("a batch takes changes inside its with block only: begin one")
        shares = self._paths.shares(operation)  # raises if a node is lost
        self._note_written(operation, x)
        for share in shares:
            self._operations.extend(share.stripes())

    def _note_written(self, operation: Operation, x: Any) -> None:
        """Note the array that a change writes.

        Raises:
            ConfigError: an earlier change writes one of its arrays. All sources are sent, or
                copied, before any result arrives, so the change would use the old contents.
        """
        sink = operation.sink
        if sink is None and not self._written:
            return
        given = typed_array(x)
        arrays = [operation.source if given is None else given]
        if sink is not None and sink.output != Output.MOVED:
            arrays.append(sink.out)
        spans = [_span(each) for each in arrays]
        if any(_overlaps(self._written, *span) for span in spans):
            raise ConfigError(
                "an earlier change of the batch writes this array (x of elastic, delta, the"
                " result of fetch_and_op): use two arrays or two batches",
                region=operation.info.name,
            )
        begin, limit = spans[-1]
        if sink is not None and begin < limit:
            insort(self._written, (begin, limit))

    def __len__(self) -> int:
        """Return the number of commits in the batch."""
        return len(self._operations)

    def __enter__(self) -> Self:
        self._is_over = bool(self._is_over)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send the changes and wait for them; raise the first failure.

        Raises:
            RequestTimeoutError: the batch is over; ``.handle.outcome()`` returns its effect.
        """
        is_sent, self._is_over = self._is_over, True
        if kind is None and len(self) and not is_sent:
            self._paths.finish(Changes("batch", None, self._operations), self._timeout_s)


def _span(array: NDArray[Any]) -> tuple[int, int]:
    """Return the address of the first byte of an array, and that behind its last one."""
    begin = limit = address_of(array)
    for count, step in zip(array.shape, array.strides, strict=True):
        last = (count - 1) * step
        begin += min(0, last)
        limit += max(0, last)
    return begin, limit + array.itemsize if array.size else begin


def _overlaps(spans: list[tuple[int, int]], begin: int, limit: int) -> bool:
    """Return whether ``[begin, limit)`` overlaps one of the sorted, disjoint spans."""
    at = bisect_left(spans, (limit, 0))
    return begin < limit and at > 0 and spans[at - 1][1] > begin


def _checked(region: Region) -> Region:
    if not isinstance(region, Region):
        raise TypeError(f"a batch changes regions, not {type(region).__name__}")
    return region
