"""Places that this process holds, and the threads that renew them: one for each memory.

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
from contextlib import suppress
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from smbox.deadline import deadline_given, deadline_of
from smbox.errors import SmboxError
from smbox.lease import RENEWALS, Lease
from smbox.member_record import Record
from smbox.roster import Roster, View

_LOG = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 1.0
"""Longest wait for a node by a process that exits."""


class Holder:
    """A place of a roster that this process holds, or is to take.

    A thread renews it from :meth:`_keep` on. It is left by :meth:`leave`, when the box closes,
    or when the interpreter exits.

    Attributes:
        memory: the box whose memory the place lies in.
        interval_s: seconds between two renewals.

    Args:
        roster: with the place.
        rank: number of the place.
        lease: of the place.
        launch: see Record.
    """

    def __init__(self, roster: Roster, rank: int, lease: Lease, *, launch: int = 0) -> None:
        self.memory = roster.memory
        self.interval_s = lease.lease_s / RENEWALS
        self._roster = roster
        self._place = rank
        self._lease = lease
        self._record = Record.own(lease_s=lease.lease_s, launch=launch)

    def check(self) -> None:
        """Raise LeaseLostError unless this process holds the place.

        Asks the node only if the lease was not renewed in time.
        """
        self._lease.check()

    def leave(self, *, timeout_s: float | None = None) -> None:
        """Free the place: nobody waits for this process. Idempotent.

        Where the node does not answer, the place is free when the lease has passed.

        Args:
            timeout_s: to wait for the node; None: the box's.
        """
        self._drop()
        with suppress(SmboxError):
            self._lease.leave(deadline_s=deadline_given(timeout_s))

    def beat(self) -> None:
        """Renew the lease and look around; the heartbeat's thread calls this.

        A lease that was found expired has another generation then, of which nobody knows yet
        whose it is and how long it is kept.
        """
        if not self._lease.try_to_renew(deadline_of(self.interval_s)):
            drop(self)
            return
        try:
            if self._watch().record(self._place) is None:
                self._introduce(deadline_of(self.interval_s))
        except SmboxError as error:
            _LOG.debug("the holders could not be looked for: %s", error)

    def _watch(self) -> View:
        return self._look(deadline_of(self.interval_s))

    def _look(self, deadline_s: float | None = None) -> View:
        self._lease.check_process()
        mine = self._place if self._lease.is_held else None
        return self._roster.look(mine=mine, deadline_s=deadline_s)

    def _introduce(self, deadline_s: float | None = None) -> None:
        """Write down who holds the place, and for how long it is kept."""
        record = replace(self._record, generation=self._lease.generation)
        self._roster.write(self._place, record, deadline_s=deadline_s)

    def _keep(self) -> None:
        keep(self)
        self.memory.before_close(self._close)

    def _drop(self) -> None:
        drop(self)
        self.memory.not_before_close(self._close)

    def _close(self) -> None:
        self.leave(timeout_s=LEAVE_TIMEOUT_S)


class Heartbeat:
    """The thread and what it renews; the module has one for each memory."""

    def __init__(self) -> None:
        self._due_s: dict[Holder, float] = {}
        self._changed = threading.Condition()
        self._is_running = False

    def keep(self, holder: Holder) -> None:
        """Renew something from now on."""
        try:
            with self._changed:
                self._due_s[holder] = time.monotonic() + holder.interval_s
                self._changed.notify_all()
                if self._is_running:
                    return
                self._is_running = True
            # Not under the lock: start() waits for the thread, which may collect garbage before
            # it runs, and so drop a holder that nobody uses any more.
            threading.Thread(target=self._run, name="smbox-heartbeat", daemon=True).start()
        except BaseException:
            self._is_running = False  # an interrupt may leave two threads: each renews
            raise

    def drop(self, holder: Holder) -> None:
        """Renew it no more. Idempotent; does not wait for a beat that is under way."""
        with self._changed:
            self._due_s.pop(holder, None)
            self._changed.notify_all()

    def leave_all(self) -> None:
        """Free all places, at the exit of the interpreter."""
        with self._changed:
            holders = list(self._due_s)
            self._due_s.clear()
            self._changed.notify_all()
        for holder in holders:
            try:
                holder.leave(timeout_s=LEAVE_TIMEOUT_S)
            except SmboxError as error:
                _LOG.debug("a place is only free after its lease: %s", error)

    def _run(self) -> None:
        while (holder := self._next()) is not None:
            try:
                holder.beat()
            except Exception:  # noqa: BLE001 -- what goes wrong with one lease ends no other
                _LOG.exception("a lease could not be renewed, and will be tried again")

    def _next(self) -> Holder | None:
        """Wait until something is due and return it; None, at the thread's end, if all left."""
        with self._changed:
            while self._due_s:
                holder = min(self._due_s, key=self._due_s.__getitem__)
                now_s = time.monotonic()
                if self._due_s[holder] <= now_s:
                    self._due_s[holder] = now_s + holder.interval_s
                    return holder
                self._changed.wait(self._due_s[holder] - now_s)
            self._is_running = False
            return None


_HEARTBEATS: WeakKeyDictionary[object, Heartbeat] = WeakKeyDictionary()
_MUTEX = threading.RLock()
"""A thread that holds it may collect garbage, and so drop a holder."""


def keep(holder: Holder) -> None:
    """Renew something from now on, on the thread of its memory."""
    with _MUTEX:
        heartbeat = _HEARTBEATS.setdefault(holder.memory, Heartbeat())
    heartbeat.keep(holder)
    atexit.unregister(_leave_all)  # last registered, first called: before nodes are ended
    atexit.register(_leave_all)


def drop(holder: Holder) -> None:
    """Renew it no more. Idempotent."""
    with _MUTEX:
        heartbeat = _HEARTBEATS.get(holder.memory)
    if heartbeat is not None:
        heartbeat.drop(holder)


def _leave_all() -> None:
    with _MUTEX:
        heartbeats = list(_HEARTBEATS.values())
    for heartbeat in heartbeats:
        heartbeat.leave_all()


def _begin_anew() -> None:
    global _MUTEX  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _MUTEX = threading.RLock()
    _HEARTBEATS.clear()  # the parent's threads do not run in a forked child


os.register_at_fork(after_in_child=_begin_anew)
