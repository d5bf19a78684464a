"""From a verb's operation to its result, on whatever path: at once, later, or in a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from smbox.errors import SmboxError
from smbox.handle import Handle, check_seconds
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import pieces
from smbox.paths import snapshots
from smbox.paths.control import ANSWER_MIN_S
from smbox.paths.pair import PathPair
from smbox.paths.work import Bytes, Operation, RegionInfo, Work
from smbox.wire.ops import carried_nbytes

T = TypeVar("T")


def nothing() -> None:
    """Be the result of verbs that have none."""


def change(paths: PathPair, operation: Operation, timeout_s: float | None) -> None:
    """Do a change, as a blocking verb does."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    _do(paths, operation.op, work_of(paths, operation), timeout_s)


def change_nb(paths: PathPair, operation: Operation, result: Callable[[], T]) -> Handle[T]:
    """Begin a change; its result is made when it is complete."""
    return Handle(operation.op, work_of(paths, operation), result, paths.timeout_s).begin()


def work_of(paths: PathPair, operation: Operation) -> Work:
    """Describe a change; one of no bytes only sees that the region still lives."""
    data = paths.data(operation.info)
    if operation.first == operation.limit:
        return data.wait_version(operation.info, 0)
    return data.change(operation)


def _do(paths: PathPair, op: str, work: Work, timeout_s: float | None) -> None:
    """Begin a request and wait for it; whatever cuts that off ends it.

    Most requests on mapped memory are done when they are begun, and need no handle.
    """
    try:
        work.begin()
        if not work.is_done or work.error is not None:
            Handle(op, work, nothing, paths.timeout_s).finish(timeout_s)
    except SmboxError:
        raise
    except BaseException:
        work.cancel()
        raise


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
    if is_snapshot and first < limit:
        again = partial(snapshots.snapshot, paths, info, first, limit, out, timeout_s)
        snapshots.once_more(lambda: _do(paths, "get", again(), timeout_s))
        return
    _do(paths, "get", _read(paths, info, first, limit, out, operand), timeout_s)


def read_nb(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: Bytes,
    result: Callable[[], T],
    *,
    operand: int = 0,
    is_snapshot: bool = False,
) -> Handle[T]:
    """Begin to read; with ``is_snapshot`` all of one moment."""
    if is_snapshot and first < limit:
        work = snapshots.snapshot(paths, info, first, limit, out, None)
    else:
        work = _read(paths, info, first, limit, out, operand)
    return Handle("get", work, result, paths.timeout_s).begin()


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


def cut(operation: Operation) -> list[Operation]:
    """Cut an operation into those of one stripe each that a batch is made of."""
    begin, limit, source = operation.first, operation.limit, operation.source
    if 0 < limit - begin <= STRIPE_NBYTES - begin % STRIPE_NBYTES:
        return [operation]
    parts = []
    for _, first, end in pieces(begin, limit):
        at = carried_nbytes(first - begin, operation.operand)
        behind = carried_nbytes(end - begin, operation.operand)
        parts.append(operation._replace(first=first, limit=end, source=source[at:behind]))
    return parts


def look_s(deadline_s: float) -> float:
    """Return how long a look may take that a wait until the deadline begins with."""
    return max(ANSWER_MIN_S, deadline_s - time.monotonic())


def deadline_of(timeout_s: float) -> float:
    """Return the monotonic time at which ``timeout_s`` from now has passed."""
    return math.inf if timeout_s == math.inf else time.monotonic() + timeout_s
