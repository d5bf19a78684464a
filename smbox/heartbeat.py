"""Lease renewal: one heartbeat thread for each memory renews the leases of this process.

A node that does not answer delays only the renewals of its own leases. The threads are daemons.
When the interpreter exits, the process leaves all places. A forked child has no heartbeat
threads and renews no leases of its parent.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from contextlib import suppress
from multiprocessing.util import Finalize, register_after_fork
from typing import Final

from msgspec.structs import replace

from smbox.deadline import deadline_given, deadline_of
from smbox.errors import ConfigError, PeerLostError, RegionFreedError, SmboxError
from smbox.lease import RENEWALS, Lease, leases_s
from smbox.limits import start_thread
from smbox.member_record import Record
from smbox.roster import LEASE_MS, Roster, View

_LOG = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 1.0
"""Longest wait for a node when a box closes or the process exits."""

INTERVAL_MIN_S: Final = 0.01
"""Shortest interval that the lease of another process can cause."""


class Holder:
    """A place of a roster that this process holds or will take.

    The heartbeat thread renews its lease. The process leaves the place by :meth:`leave`, when
    the box closes, or when the interpreter exits.

    Attributes:
        memory: the box with the memory of the place.
        answer_s: longest wait for the node in a renewal.

    Args:
        roster: the roster of the place.
        rank: number of the place.
        lease: lease of the place.
        launch: see ``Record``.
        restart: see ``Record``.
    """

    def __init__(
        self, roster: Roster, rank: int, lease: Lease, *, launch: int = 0, restart: int = 0
    ) -> None:
        self.memory = roster.memory
        self.answer_s = lease.lease_s / RENEWALS
        self._roster = roster
        self._place = rank
        self._lease = lease
        self._launch = launch
        self._restart = restart

    @property
    def interval_s(self) -> float:
        """Seconds between two renewals, each with a read: a quarter of the shortest lease."""
        view = self._roster.seen
        leases = leases_s(view.words[view.is_alive, LEASE_MS])
        shortest_s = float(leases.min(initial=math.inf)) / RENEWALS
        return min(self.answer_s, max(shortest_s, INTERVAL_MIN_S))

    @property
    def is_held(self) -> bool:
        """Return True if, as far as is known, this object holds its place."""
        return self._lease.is_held

    def check(self) -> None:
        """Raise LeaseLostError unless this process holds the place.

        Sends a request only if the lease was not renewed in time.
        """
        self._lease.check()

    def leave(self, *, timeout_s: float | None = None) -> None:
        """Free the place. Idempotent.

        If the node does not answer, the place is free once the lease expires, or by another
        call.

        Args:
            timeout_s: seconds to wait for the node; None: the timeout of the box.

        Raises:
            ConfigError: ``timeout_s`` is not a number of seconds; nothing changed.
        """
        self._leave(deadline_given(timeout_s))

    def _leave(self, deadline_s: float | None) -> None:
        drop(self)
        lease = self._lease
        with suppress(SmboxError):
            lease.leave(deadline_s=deadline_s)
            self.memory.not_before_close(lease)

    def beat(self) -> None:
        """Renew the lease and read the roster; called by the heartbeat thread.

        After an error, the next call tries again. If the memory no longer exists,
        the lease is lost. A renewal of an expired lease begins a generation, and the record is
        then written again.
        """
        lease = self._lease
        try:
            lease.renew(deadline_s=deadline_of(self.answer_s))
        except (ConfigError, PeerLostError, RegionFreedError) as error:
            lease.lose(f"the memory of the lease no longer exists: {error}")
        except TimeoutError as error:  # as long as the node is gone
            _LOG.debug("cannot renew a lease: %s", error)
        except SmboxError as error:
            if self in _DUE_S:  # else another thread left the place meanwhile
                _LOG.warning("cannot renew a lease: %s", error)
        try:
            self._refresh(deadline_of(self.answer_s))
        except SmboxError as error:
            _LOG.debug("cannot read or write the records of holders: %s", error)

    def _refresh(self, deadline_s: float) -> None:
        """Read the roster; write the record of this process unless it is there.

        The generation may be new, or a former holder that was stopped wrote its record late.
        """
        self._read(deadline_s)
        found = self._roster.record(self._place, deadline_s=deadline_s)
        if found is None or found.generation < self._lease.generation:
            self._write_record(deadline_s)

    def _read(self, deadline_s: float | None = None, *, deaths: bool = False) -> View:
        self._lease.check_process()
        mine = self._place if self._lease.is_held else None
        return self._roster.read(mine=mine, deaths=deaths, deadline_s=deadline_s)

    def _take_place(
        self,
        lease: Lease,
        generation: int,
        values: list[int],
        deadline_s: float | None = None,
    ) -> bool:
        """Take a place, which is left when the box closes; arguments as of ``Lease.take``."""
        self.memory.before_close(lease, lambda: self._close(lease))
        if not (is_taken := lease.take(generation, values, deadline_s=deadline_s)):
            self.memory.not_before_close(lease)
        return is_taken

    def _begin(self, lease: Lease, deadline_s: float | None = None) -> None:
        """Write the record of a place that was just taken, and start to renew its lease.

        Raises LeaseLostError, and begins no renewals, if the lease was lost meanwhile.
        """
        self._lease = lease
        self._record = Record.own(launch=self._launch, restart=self._restart)
        self._write_record(deadline_s)
        lease.check(deadline_s=deadline_s)
        keep(self)

    def _set(self, index: int, value: int, deadline_s: float | None = None) -> None:
        """Set a value of the lease. A smaller value begins a generation, as in ``beat``."""
        self._lease.set(index, value, deadline_s=deadline_s)
        if self._record.generation != self._lease.generation:
            with suppress(TimeoutError):  # the value is set; ``beat`` writes the record
                self._write_record(deadline_s)

    def _write_record(self, deadline_s: float | None) -> None:
        """Write the record of this process."""
        self._record = replace(self._record, generation=self._lease.generation)
        self._roster.write(self._place, self._record, deadline_s=deadline_s)

    def _close(self, lease: Lease) -> None:
        drop(self)
        with suppress(SmboxError):
            lease.close(deadline_of(LEAVE_TIMEOUT_S))


_LOCK = threading.RLock()
"""Protects _DUE_S and _SERVED. Reentrant: garbage collection may call ``drop`` in its owner.

Enter the lock, not the condition: Ctrl-C in ``Condition.__enter__`` may leave it held.
"""
_CHANGED = threading.Condition(_LOCK)
_DUE_S: Final[dict[Holder, float]] = {}
"""Time of the next renewal of each holder, on the monotonic clock."""
_SERVED: Final[set[object]] = set()
"""Memories that have a heartbeat thread."""


def keep(holder: Holder) -> None:
    """Renew a holder's lease, on the thread of its memory, until it is dropped or lost."""
    memory = holder.memory
    try:
        with _LOCK:
            _DUE_S[holder] = time.monotonic() + holder.interval_s
            _CHANGED.notify_all()
            is_served = memory in _SERVED
            _SERVED.add(memory)
        if not is_served:
            # Without the lock: start() waits for the new thread, in which garbage collection
            # may call drop().
            name = "smbox-heartbeat"
            thread = threading.Thread(target=_serve, args=(memory,), name=name, daemon=True)
            start_thread(thread.start)
    except BaseException:
        _SERVED.discard(memory)  # after an interrupt two threads may renew; that is harmless
        raise
    atexit.unregister(_leave_all)  # registered last, it runs first: before nodes are ended
    atexit.register(_leave_all)


def drop(holder: Holder) -> None:
    """Stop renewing a holder's lease. Idempotent; does not wait for a renewal in progress."""
    with _LOCK:
        _DUE_S.pop(holder, None)
        _CHANGED.notify_all()


def _serve(memory: object) -> None:
    while (holder := _next(memory)) is not None:
        try:
            holder.beat()
        except Exception:  # noqa: BLE001 -- a failure of one lease must not affect others
            _LOG.exception("cannot renew a lease; the heartbeat thread will retry")


def _next(memory: object) -> Holder | None:
    """Wait until a renewal is due and return its holder; None if no holder is left."""
    with _LOCK:
        while mine := {
            each: at_s for each, at_s in _DUE_S.copy().items() if each.memory is memory
        }:
            holder = min(mine, key=mine.__getitem__)
            wait_s = mine[holder] - time.monotonic()
            if not holder.is_held:
                _DUE_S.pop(holder, None)
            elif wait_s > 0.0:
                _CHANGED.wait(min(wait_s, threading.TIMEOUT_MAX))
            else:
                _DUE_S[holder] = time.monotonic() + holder.interval_s
                return holder
        _SERVED.discard(memory)
        return None


def _leave_all() -> None:
    """Leave all places; called when the interpreter exits."""
    for holder in _DUE_S.copy():
        holder.leave(timeout_s=LEAVE_TIMEOUT_S)


def _reset() -> None:
    """Forget in a forked child that there were heartbeat threads; it holds no place."""
    global _LOCK, _CHANGED  # noqa: PLW0603 - another thread may have held it at the fork
    _LOCK = threading.RLock()
    _CHANGED = threading.Condition(_LOCK)
    _SERVED.clear()


os.register_at_fork(after_in_child=_reset)
register_after_fork(_leave_all, lambda leave: Finalize(None, leave, exitpriority=0))
