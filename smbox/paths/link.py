"""The connection that a Box shares with all it hands out: opened on demand, once per process.

A forked child drops what it inherited and opens its own on first use. Pickled, a link is its
settings; a process opens one link for all the pickles of equal settings that it loads.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

from smbox.config import ClientConfig
from smbox.errors import ConfigError
from smbox.paths.base import ControlPath, DataPath
from smbox.paths.choosing import Opened, open_paths

Opener = Callable[[ClientConfig], Opened]


class Link:
    """Settings, and the two paths opened by them.

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
        self._opened: Opened | None = None
        self._data: DataPath | None = None
        self._mutex = threading.Lock()
        _LINKS.add(self)

    def data(self) -> DataPath:
        """Return the data path; opens the link if need be.

        Raises:
            ConfigError: the box was closed.
            ConnectError: the node cannot be reached.
        """
        path = self._data
        return self.open().data if path is None else path

    def control(self) -> ControlPath:
        """Return the control path; raises as ``data`` does."""
        return self.open().control

    def open(self) -> Opened:
        """Open the link if it is not open; raises as ``data`` does."""
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
        if opened is not None:
            opened.data.close()
            opened.control.close()

    def abandon(self) -> None:
        """Forget the parent's connection, in a forked child."""
        self._mutex = threading.Lock()
        opened, self._opened, self._data = self._opened, None, None
        if opened is not None:
            opened.data.abandon()
            opened.control.abandon()

    def __reduce__(self) -> tuple[Callable[[ClientConfig, Opener], Link], tuple[object, ...]]:
        """Travel as settings."""
        return shared_link, (self.config, self._opener)


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()
_SHARED: weakref.WeakValueDictionary[tuple[ClientConfig, Opener], Link] = (
    weakref.WeakValueDictionary()
)
_SHARED_MUTEX = threading.Lock()


def shared_link(config: ClientConfig, opener: Opener) -> Link:
    """Return this process's link of these settings for what was pickled elsewhere."""
    with _SHARED_MUTEX:
        link = _SHARED.get((config, opener))
        if link is None or link.is_closed:
            link = _SHARED[config, opener] = Link(config, opener)
        return link


def _abandon_all() -> None:
    for link in list(_LINKS):
        link.abandon()


def _close_all() -> None:
    for link in list(_LINKS):
        link.close()


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
