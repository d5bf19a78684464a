"""PathPair: the control path and data path that a Box shares with its regions and handles.

The paths are opened on demand, in each process. A forked child drops the inherited paths and
opens its own on first use. Pickled, a pair is its settings; a process opens one pair for all
the pickles of equal settings that it loads, and keeps it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize, register_after_fork
from typing import Any, TypeVar

from smbox.address import GlobalAddress
from smbox.config import ClientConfig
from smbox.deadline import check_seconds, deadline_of, left_s, request_timeout_s
from smbox.errors import AddressRangeError, ConfigError, PeerLostError, SmboxError
from smbox.handle import Handle
from smbox.paths.control import ControlPath
from smbox.paths.opening import DataPath, OpenPaths, open_paths
from smbox.paths.requests import ByteRange, Operation, PathRequest, RegionInfo
from smbox.work import Exclusive, Work, exclusive

T = TypeVar("T")

Opener = Callable[[ClientConfig], OpenPaths]


class Done(Work):
    """A request for bytes ``[first, limit)`` that was done at once."""

    def __init__(self, first: int, limit: int) -> None:
        self._range = first, limit

    def advance(self, deadline_s: float) -> bool:  # noqa: ARG002 - nothing to wait for
        """Return True."""
        return True

    def outcome(self) -> str:
        """Return "all"."""
        return "all"

    def ranges_done(self) -> list[ByteRange]:
        """Return the whole range."""
        return [self._range]


def no_result() -> Any:
    """Return None, the result of a verb that has none."""
    return None


class PathPair(Exclusive):
    """The settings of a box, and the control and data path opened by them.

    Thread-safe.

    Attributes:
        timeout_s: how long a verb waits that is given no timeout.

    Args:
        config: complete settings.
        opener: opens the paths; tests give their own.
    """

    def __init__(self, config: ClientConfig, opener: Opener = open_paths) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self.is_closed = False
        self._opener = opener
        self._opened: OpenPaths | None = None
        self._uuid = b""  # of the node's memory, as long as the paths are open
        self.renew_locks()
        _PAIRS.add(self)

    def data(self, info: RegionInfo | None = None) -> DataPath:
        """Return the data path; open it if need be.

        Args:
            info: the region that it is used for.

        Raises:
            ConfigError: the box was closed.
            ConnectError: the node cannot be reached.
            PeerLostError: the region lies in another memory than that of the node.
        """
        opened = self._opened or self.open()
        if info is not None and info.node_uuid != self._uuid:
            raise PeerLostError(
                "the region is in another memory than this box: use the box that the region"
                " came from; or the memory was replaced: connect again and attach the new"
                " region",
                region=info.name,
                outcome="none",
            )
        return opened.data

    def control(self, info: RegionInfo | None = None) -> ControlPath:
        """Return the control path; raises as ``data`` does."""
        self.data(info)
        return self.open().control

    def seconds(self, timeout_s: float | None) -> float:
        """Return how long to wait: the argument, or the timeout of the settings.

        Raises:
            ConfigError: not a number.
        """
        return self.timeout_s if timeout_s is None else check_seconds(timeout_s)

    def request_s(self, deadline_s: float | None) -> float:
        """Return the timeout of a request of a call; without deadline that of the settings."""
        return self.timeout_s if deadline_s is None else request_timeout_s(deadline_s)

    def finish(self, request: PathRequest, timeout_s: float | None) -> None:
        """Do a request, and wait until it is done, as a blocking verb does."""
        if timeout_s is not None:
            check_seconds(timeout_s)
        work = self.data(request.info).start(request)
        if work is not None:
            Handle(request.op, work, no_result, self.timeout_s).finish(timeout_s)

    def begin(self, request: PathRequest, result: Callable[[], T] = no_result) -> Handle[T]:
        """Begin a request; ``result`` is called once it is done, and returns its result."""
        return Handle(request.op, self.work_of(request), result, self.timeout_s).begin()

    def work_of(self, request: PathRequest) -> Work:
        """Return a request as a work object, also if it is done at once."""
        return self.data(request.info).start(request) or Done(request.first, request.limit)

    def shares(self, operation: Operation) -> list[Operation]:
        """Return a change as one for each of its nodes: here one; raises as ``data`` does."""
        self.data(operation.info)
        return [operation]

    def wait_version(
        self, info: RegionInfo, version: int, timeout_s: float | None, *, op: str = "wait"
    ) -> int:
        """Wait until a region has a version, as a blocking verb does; return its version."""
        work = self.data(info).wait_version(info, version)
        return Handle(op, work, lambda: work.found, self.timeout_s).finish(timeout_s)

    def locate(
        self, address: int, nbytes: int, timeout_s: float | None
    ) -> tuple[RegionInfo, int, float | None]:
        """Find bytes by their address.

        Returns:
            Their region, their first byte in its data, and what is left of the timeout; None
            stands for the timeout of the settings.

        Raises:
            AddressRangeError: they are not in one region, or not whole elements.
        """
        deadline_s = deadline_of(self.seconds(timeout_s))
        info = self.control().locate(GlobalAddress(address), request_timeout_s(deadline_s))
        first = int(address) - int(info.address)
        facts = {"address": address, "nbytes": nbytes, "region": info.name}
        if nbytes < 0 or first + nbytes > info.nbytes:
            raise AddressRangeError("the range leaves its region", **facts)
        if first % info.dtype.itemsize or nbytes % info.dtype.itemsize:
            raise AddressRangeError("the range cuts an element", **facts)
        return info, first, None if timeout_s is None else left_s(deadline_s)

    def open(self) -> OpenPaths:
        """Open both paths if they are not open; raises as ``data`` does."""
        return self._opened or self._open()

    @exclusive
    def _open(self) -> OpenPaths:
        if self._opened is None and not self.is_closed:
            try:
                opened = self._opener(self.config)
            except SmboxError as error:
                error.facts.setdefault("address", self.config.address)
                raise
            self._uuid, self._opened = opened.control.node.uuid, opened
        if self._opened is None or self.is_closed:  # by a signal handler, meanwhile
            self.close()
            raise ConfigError("the box was closed", address=self.config.address)
        return self._opened

    def check_not_nested(self) -> None:
        """Raise NestedCallError if this thread is inside a call on these paths."""
        super().check_not_nested()
        if (opened := self._opened) is not None:  # once: another thread may close the paths
            opened.data.check_not_nested()

    def say_bye(self) -> None:
        """Begin to close: notify the node, so that pairs that close together wait together."""
        with self._lock:
            self.is_closed, opened = True, self._opened
        if opened is not None:
            opened.data.say_bye()
            opened.control.say_bye()

    def close(self) -> None:
        """Close both paths for good. Idempotent."""
        self.say_bye()
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.data.close()
            opened.control.close()

    def abandon(self) -> None:
        """Drop the parent's paths in a forked child."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.data.abandon()
            opened.control.abandon()

    def __reduce__(self) -> tuple[Callable[..., PathPair], tuple[object, ...]]:
        """Pickle the settings, and the uuid of the memory that they lead to."""
        return shared, (self.config, self._opener, self._uuid)


_PAIRS: weakref.WeakSet[PathPair] = weakref.WeakSet()
_SHARED: dict[tuple[ClientConfig, Opener, bytes], PathPair] = {}


def shared(config: ClientConfig, opener: Opener, uuid: bytes) -> PathPair:
    """Return this process's pair of these settings, for an object pickled elsewhere.

    The pair stays open for later objects: each task of a pool loads its own. Objects of another
    memory at the same address have another ``uuid``, and get another pair.
    """
    found = _SHARED.setdefault((config, opener, uuid), PathPair(config, opener))
    if found.is_closed:
        found = _SHARED[config, opener, uuid] = PathPair(config, opener)
    return found


def _abandon_all() -> None:
    for pair in list(_PAIRS):
        pair.abandon()


def _close_all() -> None:
    pairs = list(_PAIRS)
    for pair in pairs:
        pair.say_bye()
    for pair in pairs:
        pair.close()


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
# Children that multiprocessing forks run no exit functions of their parent, or none at all.
register_after_fork(_close_all, lambda close: Finalize(None, close, exitpriority=-1))
