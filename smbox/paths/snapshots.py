"""Snapshots: a range read as it was at one moment, with staging for the copy if it travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from smbox.errors import ConfigError, PeerLostError
from smbox.memory.layout import Consistency
from smbox.paths.control import ANSWER_MIN_S
from smbox.paths.pair import PathPair
from smbox.paths.staging import IDLE_MAX
from smbox.paths.work import Bytes, Lease, RegionInfo, Work

T = TypeVar("T")


def snapshot(
    paths: PathPair,
    info: RegionInfo,
    first: int,
    limit: int,
    out: Bytes,
    timeout_s: float | None,
) -> Work:
    """Describe a read of a range at one moment; staging is to be there by the timeout.

    Raises:
        RequestTimeoutError: the node gave no staging in time; nothing was begun.
        OutOfMemoryError: the node has no room for the staging.
        ConfigError: the region has no locks.
    """
    if info.consistency == Consistency.NONE:
        raise ConfigError("a region without locks has no snapshots", region=info.name)
    data = paths.data(info)
    if not data.stages_snapshots(first, limit):
        return data.snapshot(info, first, limit, out, None)
    count = (limit - first) // info.dtype.itemsize
    lease = _lease(paths, info, count, timeout_s)
    try:
        return data.snapshot(info, first, limit, out, lease)
    except BaseException:
        lease.drop()
        raise


def _lease(paths: PathPair, info: RegionInfo, count: int, timeout_s: float | None) -> Lease:
    wait_s = max(paths.seconds(timeout_s), ANSWER_MIN_S)
    return paths.staging.lease(paths.control(info), info.dtype, count, wait_s)


def once_more(verb: Callable[[], T]) -> T:
    """Call a blocking snapshot, again as long as the node has lost its staging.

    That staging is not used again; all that are kept may have been lost.
    """
    for _ in range(IDLE_MAX):
        try:
            return verb()
        except PeerLostError as error:
            if error.facts.get("lost") != "staging" or error.facts.get("outcome") != "none":
                raise
    return verb()
