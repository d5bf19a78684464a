"""What a Box shares with all it hands out: its two paths, opened on demand, per process.

A forked child drops what it inherited and opens its own on first use. Pickled, a pair is
its settings; a process opens one for all the pickles of equal settings that it loads.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from collections.abc import Callable

from smbox.config import ClientConfig
from smbox.errors import ConfigError
from smbox.paths.base import ControlPath, DataPath
from smbox.paths.choosing import Opened, open_paths
from smbox.paths.staging import Staging

Opener = Callable[[ClientConfig], Opened]


class PathPair:
    """Settings, and the control and data path opened by them.

    Thread-safe. ``timeout_s`` is how long a verb waits when it is not told.

    Attributes:
        staging: regions of this client's own, for copies of snapshots.

    Args:
        config: complete settings.
        opener: opens the paths; a test's own, or the default.
    """

    def __init__(self, config: ClientConfig, opener: Opener = open_paths) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self.is_closed = False
        self.staging = Staging()
        self._opener = opener
        self._opened: Opened | None = None
        self._data: DataPath | None = None
        self._mutex = threading.Lock()
        _PAIRS.add(self)

    def data(self) -> DataPath:
        """Return the data path; opens it if need be.

        Raises:
            ConfigError: the box was closed.
            ConnectError: the node cannot be reached.
        """
        path = self._data
        return self.open().data if path is None else path

    def control(self) -> ControlPath:
        """Return the control path; raises as ``data`` does."""
        return self.open().control

    def check_same_node(self, other: PathPair) -> None:
        """Raise ConfigError unless ``other`` leads to the same memory."""
        if other is not self and other.control().node.uuid != self.control().node.uuid:
            raise ConfigError("both regions lie at one node", other=other.config.address)

    def seconds(self, timeout_s: float | None) -> float:
        """Return how long to wait: as long as was said, or as the settings say.

        Raises:
            ConfigError: not a number.
        """
        wanted_s = self.timeout_s if timeout_s is None else timeout_s
        if math.isnan(wanted_s):  # it would never be over
            raise ConfigError("timeout_s is a number of seconds", timeout_s=wanted_s)
        return wanted_s

    def open(self) -> Opened:
        """Open both paths if they are not open; raises as ``data`` does."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._mutex:
            if self.is_closed:
                raise ConfigError("the box was closed", address=self.config.address)
            if self._opened is None:
                self._opened = self._opener(self.config)
                self._data = self._opened.data
            return self._opened

    def close(self) -> None:
        """Let go of everything, for good. Idempotent."""
        with self._mutex:
            self.is_closed = True
            opened, self._opened, self._data = self._opened, None, None
        self.staging.clear()
        if opened is not None:
            opened.data.close()
            opened.control.close()

    def abandon(self) -> None:
        """Forget the parent's paths, in a forked child."""
        self._mutex = threading.Lock()
        self.staging.clear()
        opened, self._opened, self._data = self._opened, None, None
        if opened is not None:
            opened.data.abandon()
            opened.control.abandon()

    def __reduce__(self) -> tuple[Callable[..., PathPair], tuple[object, ...]]:
        """Travel as settings."""
        return shared, (self.config, self._opener)


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
    for pair in list(_PAIRS):
        pair.close()


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
