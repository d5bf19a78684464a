"""Operations on a whole range at one moment: staged where they have to be, begun on a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smbox.errors import ConfigError, PeerLostError
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import Consistency
from smbox.paths.control import ANSWER_MIN_S
from smbox.paths.pair import PathPair
from smbox.paths.special import Lease
from smbox.paths.staging import IDLE_MAX
from smbox.paths.work import Bytes, Operation, RegionInfo, Sink, Work

T = TypeVar("T")


def changes_whole(info: RegionInfo) -> bool:
    """Tell whether every operation on the region is all or nothing."""
    return info.consistency == Consistency.REGION


def check_by_stripe(info: RegionInfo, verb: str) -> None:
    """Raise ConfigError if the region changes as a whole, which ``verb`` cannot do."""
    if changes_whole(info):
        raise ConfigError(
            f"{verb} works stripe by stripe; a region of consistency 'region' changes as a"
            " whole, by put, accumulate, elastic and fetch_and_op",
            region=info.name,
        )


def begin_change(
    paths: PathPair,
    info: RegionInfo,
    operation: Operation,
    sink: Sink | None,
    timeout_s: float | None,
) -> Work:
    """Begin a change that is all or nothing; its staging is to be there within the timeout.

    Raises:
        RequestTimeoutError: it was not; nothing was begun.
        OutOfMemoryError: the node has no room for the staging.
        ConfigError: the kernel cannot run on more than one stripe.
    """
    if KERNELS[operation.kernel].is_whole:
        check_by_stripe(info, operation.op)
    count = (operation.limit - operation.first) // info.dtype.itemsize
    count *= 1 if sink is None else 2  # old bytes come back through the second half

    def begin() -> Work:
        lease = _lease(paths, info, count, timeout_s)
        try:
            return paths.data().special.change_whole(info, operation, sink, lease)
        except BaseException:
            lease.drop()
            raise

    return once_more(begin)


def begin_read(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: Bytes,
    timeout_s: float | None,
) -> Work:
    """Begin to read a range as it was at one moment; as ``begin_change``.

    Raises:
        RequestTimeoutError: the node gave no staging in time; nothing was begun.
        OutOfMemoryError: the node has no room for the staging.
        ConfigError: the region has no locks.
    """
    if info.consistency == Consistency.NONE:
        raise ConfigError("a region without locks has no snapshots", region=info.name)
    special = paths.data().special
    if not special.stages_reads(info, first, limit):
        return special.read_whole(info, first, limit, out, None)
    count = (limit - first) // info.dtype.itemsize
    lease = _lease(paths, info, count, timeout_s)
    try:
        return special.read_whole(info, first, limit, out, lease)
    except BaseException:
        lease.drop()
        raise


def _lease(paths: PathPair, info: RegionInfo, count: int, timeout_s: float | None) -> Lease:
    wait_s = max(paths.seconds(timeout_s), ANSWER_MIN_S)
    return paths.staging.lease(paths.control(), info.dtype, count, wait_s)


def once_more(verb: Callable[[], T]) -> T:
    """Call a blocking verb, again as long as the node has lost its staging.

    Then nothing was changed, and that staging is not used again; all that are kept may have
    been lost. Handles cannot do this once they have begun: what was begun after them would
    come before them.
    """
    for _ in range(IDLE_MAX):
        try:
            return verb()
        except PeerLostError as error:
            if error.facts.get("lost") != "staging" or error.facts.get("outcome") != "not-sent":
                raise
    return verb()
