"""What a Box shares with all it hands out: its two paths, opened on demand, per process.

A forked child drops what it inherited and opens its own on first use. Pickled, a pair is
its settings; a process opens one for all the pickles of equal settings that it loads.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

from smbox.config import ClientConfig
from smbox.deadline import check_seconds
from smbox.errors import ConfigError, PeerLostError
from smbox.paths.control import ControlPath
from smbox.paths.opening import DataPath, OpenPaths, open_paths
from smbox.paths.work import RegionInfo

Opener = Callable[[ClientConfig], OpenPaths]


class PathPair:
    """Settings, and the control and data path opened by them.

    Thread-safe. ``timeout_s`` is how long a verb waits when it is not told.

    Args:
        config: complete settings.
        opener: opens the paths; a test's own, or the default.
    """

    def __init__(self, config: ClientConfig, opener: Opener = open_paths) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self.is_closed = False
        self._opener = opener
        self._opened: OpenPaths | None = None
        self._uuid = b""  # of the memory that the paths lead to, as long as they are open
        self._mutex = threading.Lock()
        _PAIRS.add(self)

    def data(self, info: RegionInfo | None = None) -> DataPath:
        """Return the data path; opens it if need be.

        Args:
            info: the region whose data is asked for.

        Raises:
            ConfigError: the box was closed.
            ConnectError: the node cannot be reached.
            PeerLostError: the region lies in another memory than the node's.
        """
        opened = self._opened
        if opened is None:
            opened = self.open()
        if info is not None and info.node_uuid != self._uuid:
            raise _lost(info)
        return opened.data

    def control(self, info: RegionInfo | None = None) -> ControlPath:
        """Return the control path; raises as ``data`` does."""
        control = self.open().control
        if info is not None and info.node_uuid != self._uuid:
            raise _lost(info)
        return control

    def seconds(self, timeout_s: float | None) -> float:
        """Return how long to wait: as long as was said, or as the settings say.

        Raises:
            ConfigError: not a number.
        """
        return self.timeout_s if timeout_s is None else check_seconds(timeout_s)

    def open(self) -> OpenPaths:
        """Open both paths if they are not open; raises as ``data`` does."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._mutex:
            if self.is_closed:
                raise ConfigError("the box was closed", address=self.config.address)
            if self._opened is None:
                opened = self._opener(self.config)
                self._uuid = opened.control.node.uuid
                self._opened = opened
            return self._opened

    def say_bye(self) -> None:
        """Begin to close: tell the node, so that all who close wait at the same time."""
        with self._mutex:
            self.is_closed = True
            opened = self._opened
        if opened is not None:
            opened.data.say_bye()
            opened.control.say_bye()

    def close(self) -> None:
        """Let go of everything, for good. Idempotent."""
        self.say_bye()
        with self._mutex:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.data.close()
            opened.control.close()

    def abandon(self) -> None:
        """Forget the parent's paths, in a forked child."""
        self._mutex = threading.Lock()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.data.abandon()
            opened.control.abandon()

    def __reduce__(self) -> tuple[Callable[..., PathPair], tuple[object, ...]]:
        """Travel as settings."""
        return shared, (self.config, self._opener)


def _lost(info: RegionInfo) -> PeerLostError:
    return PeerLostError(
        "the memory that the region lay in is gone: another one answers at this address;"
        " connect again and attach the new region",
        region=info.name,
        outcome="none",
    )


_PAIRS: weakref.WeakSet[PathPair] = weakref.WeakSet()
_SHARED: weakref.WeakValueDictionary[tuple[ClientConfig, Opener], PathPair] = (
    weakref.WeakValueDictionary()
)
_SHARED_MUTEX = threading.Lock()


def shared(config: ClientConfig, opener: Opener) -> PathPair:
    """Return this process's pair of these settings, for what was pickled elsewhere."""
    with _SHARED_MUTEX:
        found = _SHARED.get((config, opener))
        if found is None or found.is_closed:
            found = _SHARED[config, opener] = PathPair(config, opener)
        return found


def _abandon_all() -> None:
    global _SHARED_MUTEX  # noqa: PLW0603 - another thread may have held it at the fork
    _SHARED_MUTEX = threading.Lock()
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
