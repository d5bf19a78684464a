"""From what a verb wants to its result, on whatever path: at once, or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smbox.address import GlobalAddress
from smbox.deadline import check_seconds, deadline_of, left_s, look_s
from smbox.errors import AddressRangeError
from smbox.handle import Handle
from smbox.paths.pair import PathPair
from smbox.paths.readings import PathRequest
from smbox.paths.work import ByteRange, RegionInfo
from smbox.work import Work

T = TypeVar("T")


class Done(Work):
    """Bytes ``[first, limit)`` of a change or a read, done as soon as it was asked for."""

    def __init__(self, first: int, limit: int) -> None:
        self._range = first, limit

    def advance(self, deadline_s: float) -> bool:  # noqa: ARG002 - nothing to wait for
        """Nothing is left."""
        return True

    def outcome(self) -> str:
        """All of it happened."""
        return "all"

    def ranges_done(self) -> list[ByteRange]:
        """List all of it."""
        return [self._range]


def nothing() -> None:
    """Be the result of verbs that have none."""


def finish(paths: PathPair, request: PathRequest, timeout_s: float | None) -> None:
    """Do what a blocking verb wants."""
    if timeout_s is not None:
        check_seconds(timeout_s)
    work = paths.data(request.info).start(request)
    if work is not None:
        Handle(request.op, work, nothing, paths.timeout_s).finish(timeout_s)


def begin(paths: PathPair, request: PathRequest, result: Callable[[], T]) -> Handle[T]:
    """Begin what a verb wants; its result is made when it is complete."""
    return Handle(request.op, work_of(paths, request), result, paths.timeout_s).begin()


def work_of(paths: PathPair, request: PathRequest) -> Work:
    """Return what a verb wants as work, also if it is done already."""
    work = paths.data(request.info).start(request)
    return work or Done(request.first, request.limit)


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
    begin = GlobalAddress(address)
    info = paths.control().locate(begin, look_s(deadline_s))
    first = int(begin) - int(info.address)
    facts = {"address": address, "nbytes": nbytes, "region": info.name}
    if nbytes < 0 or first + nbytes > info.nbytes:
        raise AddressRangeError("the range leaves its region", **facts)
    if first % info.dtype.itemsize or nbytes % info.dtype.itemsize:
        raise AddressRangeError("the range cuts an element", **facts)
    return info, first, None if timeout_s is None else left_s(deadline_s)
