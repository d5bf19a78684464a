"""The threads of a process that renew its leases: one for each memory, while there are any.

A node that does not answer delays no renewal at another node. The threads are daemons and keep
no process alive. Their leases leave their places when the interpreter exits. A forked child has
no such threads, and renews nothing of its parent's.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from smbox.errors import SmboxError

_LOG = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 1.0
"""Longest wait for a node by a process that exits."""


class Beating(Protocol):
    """What needs to be done something for again and again."""

    @property
    def memory(self) -> object:
        """The box whose memory the leases lie in."""

    @property
    def interval_s(self) -> float:
        """Seconds between two beats."""

    def beat(self) -> None:
        """Renew what there is to renew; calls :func:`drop` when there is nothing any more."""

    def leave(self, *, timeout_s: float) -> None:
        """Free the place; the interpreter exits."""


class Heartbeat:
    """The thread and what it renews; the module has one for each memory."""

    def __init__(self) -> None:
        self._due_s: dict[Beating, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, beating: Beating) -> None:
        """Renew something from now on."""
        with self._changed:
            self._due_s[beating] = time.monotonic() + beating.interval_s
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="smbox-heartbeat", daemon=True
                )
                self._thread.start()

    def drop(self, beating: Beating) -> None:
        """Renew it no more. Idempotent; does not wait for a beat that is under way."""
        with self._changed:
            self._due_s.pop(beating, None)
            self._changed.notify_all()

    def leave_all(self) -> None:
        """Free all places, at the exit of the interpreter."""
        with self._changed:
            beatings = list(self._due_s)
            self._due_s.clear()
            self._changed.notify_all()
        for beating in beatings:
            try:
                beating.leave(timeout_s=LEAVE_TIMEOUT_S)
            except SmboxError as error:
                _LOG.debug("a place is only free after its lease: %s", error)

    def _run(self) -> None:
        while (beating := self._next()) is not None:
            try:
                beating.beat()
            except Exception:  # noqa: BLE001 -- what goes wrong with one lease ends no other
                _LOG.exception("a lease could not be renewed, and will be tried again")

    def _next(self) -> Beating | None:
        """Wait until something is due and return it; None, at the thread's end, if all left."""
        with self._changed:
            while self._due_s:
                beating = min(self._due_s, key=self._due_s.__getitem__)
                now_s = time.monotonic()
                if self._due_s[beating] <= now_s:
                    self._due_s[beating] = now_s + beating.interval_s
                    return beating
                self._changed.wait(self._due_s[beating] - now_s)
            self._thread = None
            return None


_HEARTBEATS: WeakKeyDictionary[object, Heartbeat] = WeakKeyDictionary()
_MUTEX = threading.Lock()


def keep(beating: Beating) -> None:
    """Renew something from now on, on the thread of its memory."""
    with _MUTEX:
        heartbeat = _HEARTBEATS.setdefault(beating.memory, Heartbeat())
    heartbeat.keep(beating)
    atexit.unregister(_leave_all)  # last registered, first called: before nodes are ended
    atexit.register(_leave_all)


def drop(beating: Beating) -> None:
    """Renew it no more. Idempotent."""
    with _MUTEX:
        heartbeat = _HEARTBEATS.get(beating.memory)
    if heartbeat is not None:
        heartbeat.drop(beating)


def _leave_all() -> None:
    with _MUTEX:
        heartbeats = list(_HEARTBEATS.values())
    for heartbeat in heartbeats:
        heartbeat.leave_all()


def _begin_anew() -> None:
    global _MUTEX  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _MUTEX = threading.Lock()
    _HEARTBEATS.clear()  # the parent's threads do not run in a forked child


os.register_at_fork(after_in_child=_begin_anew)
