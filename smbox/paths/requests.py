"""From a verb's request to its result, on whatever path: at once, later, or in a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from smbox.handle import Handle, check_seconds
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import pieces
from smbox.paths import snapshots
from smbox.paths.base import BatchItem, Bytes, Operation, RegionInfo, Sink, Work
from smbox.paths.control import ANSWER_MIN_S
from smbox.paths.pair import PathPair

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Request(Generic[T]):
    """One change as a verb wants it; its arrays are untouchable until it is done.

    Args:
        info: the region.
        operation: what is done to it.
        sink: takes the old bytes, if the verb needs them.
        result: what the verb returns once the change is complete.
    """

    info: RegionInfo
    operation: Operation
    sink: Sink | None
    result: T


def nothing() -> None:
    """Be the result of verbs that have none."""


def change(paths: PathPair, request: Request[T], timeout_s: float | None) -> T:
    """Do a change and return the verb's result, as a blocking verb does."""
    operation = request.operation
    if timeout_s is not None:
        check_seconds(timeout_s)
    work = _change(paths, request)
    if not work.is_done or work.error is not None:
        Handle(operation.op, work, nothing, paths.timeout_s).finish(timeout_s)
    return request.result


def change_nb(paths: PathPair, request: Request[T]) -> Handle[T]:
    """Begin a change; the handle's result is the request's."""
    return begin(paths, request, lambda: request.result)


def begin(paths: PathPair, request: Request[T], result: Callable[[], U]) -> Handle[U]:
    """Begin a change; its result is made when it is complete."""
    return handle_of(paths, request.operation.op, _change(paths, request), result)


def _change(paths: PathPair, request: Request[T]) -> Work:
    operation, data = request.operation, paths.data(request.info)
    if operation.first == operation.limit:  # no byte to commit: only see that it still lives
        return data.wait_version(request.info, 0)
    return data.change(request.info, operation, request.sink)


def handle_of(paths: PathPair, op: str, work: Work, result: Callable[[], U]) -> Handle[U]:
    """Begin a request and return its handle; one that is cut off is left again."""
    try:
        work.begin()
    except BaseException:
        work.cancel()
        raise
    return Handle(op, work, result, paths.timeout_s)


def read(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: Bytes,
    timeout_s: float | None,
    *,
    operand: int = 0,
    is_snapshot: bool = False,
) -> None:
    """Read bytes of a region's data, as a blocking verb does."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    if is_snapshot:
        again = partial(read_nb, paths, info, first, limit, out, is_snapshot=True)
        snapshots.once_more(lambda: again(nothing, timeout_s).finish(timeout_s))
        return
    work = _read(paths, info, first, limit, out, operand)
    if not work.is_done or work.error is not None:
        Handle("get", work, nothing, paths.timeout_s).finish(timeout_s)


def read_nb(  # noqa: PLR0913 - as read
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: Bytes,
    result: Callable[[], T],
    timeout_s: float | None = None,
    *,
    operand: int = 0,
    is_snapshot: bool = False,
) -> Handle[T]:
    """Begin to read; with ``is_snapshot`` all of one moment, staged by the timeout."""
    if is_snapshot and first < limit:
        work = snapshots.snapshot(paths, info, first, limit, out, timeout_s)
    else:
        work = _read(paths, info, first, limit, out, operand)
    return handle_of(paths, "get", work, result)


def _read(
    paths: PathPair, info: RegionInfo, first: int, limit: int, out: Bytes, operand: int
) -> Work:
    data = paths.data(info)
    if first == limit:
        return data.wait_version(info, 0)
    return data.read(info, first, limit, out, operand)


def wait_version(
    paths: PathPair,
    info: RegionInfo,
    version: int,
    timeout_s: float | None,
    *,
    op: str = "wait",
) -> None:
    """Wait for a region's version, as a blocking verb does."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    work = paths.data(info).wait_version(info, version)
    Handle(op, work, nothing, paths.timeout_s).finish(timeout_s)


def batch_items(request: Request[T]) -> list[BatchItem]:
    """Cut a request into the commits it is made of."""
    operation, source = request.operation, request.operation.source
    if 0 < operation.limit - operation.first <= STRIPE_NBYTES - operation.first % STRIPE_NBYTES:
        return [BatchItem(request.info, operation, request.sink)]
    is_whole = KERNELS[operation.kernel].is_whole
    items = []
    for piece in pieces(operation.first, operation.limit):
        part = slice(piece.first - operation.first, piece.limit - operation.first)
        cut = operation._replace(
            first=piece.first, limit=piece.limit, source=source if is_whole else source[part]
        )
        items.append(BatchItem(request.info, cut, request.sink))
    return items


def look_s(deadline_s: float) -> float:
    """Return how long a look may take that a wait until the deadline begins with."""
    return max(ANSWER_MIN_S, deadline_s - time.monotonic())


def deadline_of(timeout_s: float) -> float:
    """Return the monotonic time at which ``timeout_s`` from now has passed."""
    return math.inf if timeout_s == math.inf else time.monotonic() + timeout_s
