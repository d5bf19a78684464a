"""From a verb's operation to its result, on whatever path: at once, later, or in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.deadline import check_seconds, deadline_of, left_s, look_s
from smbox.errors import AddressRangeError, ConfigError
from smbox.handle import Handle
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.paths.pair import PathPair
from smbox.paths.work import Done, Operation, RegionInfo
from smbox.wire import ops
from smbox.wire.ops import carried_nbytes
from smbox.work import Work

T = TypeVar("T")


def nothing() -> None:
    """Be the result of verbs that have none."""


def change(paths: PathPair, operation: Operation, timeout_s: float | None) -> None:
    """Do a change, as a blocking verb does."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    work = paths.data(operation.info).change(operation)
    if work is not None:
        Handle(operation.op, work, nothing, paths.timeout_s).finish(timeout_s)


def change_nb(paths: PathPair, operation: Operation, result: Callable[[], T]) -> Handle[T]:
    """Begin a change; its result is made when it is complete."""
    return Handle(operation.op, work_of(paths, operation), result, paths.timeout_s).begin()


def work_of(paths: PathPair, operation: Operation) -> Work:
    """Return a change as work, also if it is done already."""
    work = paths.data(operation.info).change(operation)
    return work or Done(operation.first, operation.limit)


def read(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: NDArray[Any],
    timeout_s: float | None,
    operand: int = 0,
    is_snapshot: bool = False,  # noqa: FBT001, FBT002 - names cost time
) -> None:
    """Read bytes of a region's data, as a blocking verb does."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    work: Work | None
    if is_snapshot and first < limit:
        work = _snapshot(paths, info, first, limit, out)
    else:
        work = paths.data(info).read(info, first, limit, out, operand)
    if work is not None:
        _get(paths, work, nothing).finish(timeout_s)


def _snapshot(
    paths: PathPair, info: RegionInfo, first: int, limit: int, out: NDArray[Any]
) -> Work:
    """Describe a read of a range at one moment; ConfigError: the region has no locks."""
    if info.consistency == Consistency.NONE:
        raise ConfigError("a region without locks has no snapshots", region=info.name)
    return paths.data(info).snapshot(info, first, limit, as_bytes(out))


def _get(paths: PathPair, work: Work, result: Callable[[], T]) -> Handle[T]:
    return Handle("get", work, result, paths.timeout_s)


def read_nb(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: NDArray[Any],
    result: Callable[[], T],
    operand: int = 0,
    is_snapshot: bool = False,  # noqa: FBT001, FBT002 - as ``read``
) -> Handle[T]:
    """Begin to read; with ``is_snapshot`` all of one moment."""
    if is_snapshot and first < limit:
        work = _snapshot(paths, info, first, limit, out)
    else:
        work = paths.data(info).read(info, first, limit, out, operand) or Done(first, limit)
    return _get(paths, work, result).begin()


def wait_version(
    paths: PathPair,
    info: RegionInfo,
    version: int,
    timeout_s: float | None,
    *,
    op: str = "wait",
) -> int:
    """Wait for a region's version, as a blocking verb does; return the one that was found."""
    paths.seconds(timeout_s)  # before anything is begun
    work = paths.data(info).wait_version(info, version)
    return Handle(op, work, lambda: work.found, paths.timeout_s).finish(timeout_s)


def cut(operation: Operation) -> list[Operation]:
    """Cut an operation into those of one stripe each that a batch is made of."""
    begin, limit, source = operation.first, operation.limit, as_bytes(operation.source)
    if 0 < limit - begin <= STRIPE_NBYTES - begin % STRIPE_NBYTES:
        return [operation]
    parts = []
    for first, end in ops.cut(begin, limit, STRIPE_NBYTES):
        at = carried_nbytes(first - begin, operation.operand)
        behind = carried_nbytes(end - begin, operation.operand)
        parts.append(operation._replace(first=first, limit=end, source=source[at:behind]))
    return parts


def locate(
    paths: PathPair, address: int, nbytes: int, timeout_s: float | None
) -> tuple[RegionInfo, int, float | None]:
    """Find bytes by their address.

    Returns:
        Their region, the first byte of its data, and what is left of the timeout; None if it is
        that of the box.

    Raises:
        AddressRangeError: not all in one region, or not on its elements' boundaries.
    """
    deadline_s = deadline_of(paths.seconds(timeout_s))
    wanted = GlobalAddress(address)
    info = paths.control().locate(wanted, look_s(deadline_s))
    first = int(wanted) - int(info.address)
    facts = {"address": address, "nbytes": nbytes, "region": info.name}
    if nbytes < 0 or first + nbytes > info.nbytes:
        raise AddressRangeError("the range leaves its region", **facts)
    if first % info.dtype.itemsize or nbytes % info.dtype.itemsize:
        raise AddressRangeError("the range cuts an element", **facts)
    return info, first, None if timeout_s is None else left_s(deadline_s)
