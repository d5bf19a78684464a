"""Lease renewal: one heartbeat thread for each memory renews the leases of this process.

A node that does not answer delays only its own renewals. The threads are daemons and keep
no process alive. Their leases leave their places when the interpreter exits. A forked child has
no such threads, and renews nothing of its parent's.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from smbox.deadline import deadline_given, deadline_of, look_s
from smbox.errors import ConfigError, PeerLostError, RegionFreedError, SmboxError
from smbox.lease import RENEWALS, Lease
from smbox.member_record import Record
from smbox.roster import Roster, View

_LOG = logging.getLogger(__name__)

LEAVE_TIMEOUT_S: Final = 1.0
"""Longest wait for a node by a process that exits."""


class Holder:
    """A place of a roster that this process holds, or is to take.

    A thread renews it once it is taken. It is left by :meth:`leave`, when the box closes, or
    when the interpreter exits.

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
        self._launch = launch

    @property
    def is_held(self) -> bool:
        """Whether this object holds its place, as far as this process knows."""
        return self._lease.is_held

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
        self._end()
        with suppress(SmboxError):
            self._lease.leave(deadline_s=deadline_given(timeout_s))

    def beat(self) -> None:
        """Renew the lease and look around; the heartbeat's thread calls this.

        A node that does not answer may answer again; a memory that is gone ends the lease. A
        lease that was found expired has another generation then, which others do not know yet.
        """
        lease = self._lease
        try:
            lease.renew(deadline_s=deadline_of(self.interval_s))
        except (ConfigError, PeerLostError, RegionFreedError) as error:
            lease.lose(f"the memory of the lease is gone: {error}")
        except SmboxError as error:
            _LOG.debug("a lease could not be renewed: %s", error)
        if not lease.is_held:
            return
        try:
            if self._watch().records[self._place] is None:
                self._introduce(deadline_of(self.interval_s))
        except SmboxError as error:
            _LOG.debug("the holders could not be looked for: %s", error)

    def _watch(self) -> View:
        return self._look(deadline_of(self.interval_s))

    def _look(self, deadline_s: float | None = None) -> View:
        self._lease.check_process()
        mine = self._place if self._lease.is_held else None
        return self._roster.look(mine=mine, deadline_s=deadline_s)

    def _begin(self, deadline_s: float | None = None) -> None:
        """Start renewing the place just taken, and write its record for other members.

        Raises:
            SmboxError: that could not be written; the place is left again.
        """
        self._record = Record.own(launch=self._launch)
        try:
            self._introduce(deadline_s)
            keep(self)
            self.memory.before_close(self._close)
        except BaseException:
            left_s = math.inf if deadline_s is None else look_s(deadline_s)
            self.leave(timeout_s=min(LEAVE_TIMEOUT_S, left_s))
            raise

    def _introduce(self, deadline_s: float | None) -> None:
        """Write the record of this process."""
        record = replace(self._record, generation=self._lease.generation)
        self._roster.write(self._place, record, deadline_s=deadline_s)

    def _end(self) -> None:
        """Stop renewing the lease."""
        drop(self)
        self.memory.not_before_close(self._close)

    def _close(self) -> None:
        self.leave(timeout_s=LEAVE_TIMEOUT_S)


_CHANGED = threading.Condition()
"""Protects the two below. Reentrant: its owner may collect garbage and so drop a holder."""
_DUE_S: Final[dict[Holder, float]] = {}
"""When each holder is renewed next, on the monotonic clock."""
_SERVED: Final[set[object]] = set()
"""Memories that have a thread."""


def keep(holder: Holder) -> None:
    """Renew a holder's lease on the thread of its memory until the holder loses its place."""
    memory = holder.memory
    try:
        with _CHANGED:
            _DUE_S[holder] = time.monotonic() + holder.interval_s
            _CHANGED.notify_all()
            is_served = memory in _SERVED
            _SERVED.add(memory)
        if not is_served:
            # Not under the lock: start() waits for the thread, which may collect garbage before
            # it runs, and so drop a holder that nobody uses any more.
            name = "smbox-heartbeat"
            threading.Thread(target=_serve, args=(memory,), name=name, daemon=True).start()
    except BaseException:
        _SERVED.discard(memory)  # an interrupt may leave two threads: each renews
        raise
    atexit.unregister(_leave_all)  # last registered, first called: before nodes are ended
    atexit.register(_leave_all)


def drop(holder: Holder) -> None:
    """Stop renewing a holder's lease. Idempotent; does not wait for a renewal in progress."""
    with _CHANGED:
        _DUE_S.pop(holder, None)
        _CHANGED.notify_all()


def _serve(memory: object) -> None:
    while (holder := _next(memory)) is not None:
        try:
            holder.beat()
        except Exception:  # noqa: BLE001 -- what goes wrong with one lease ends no other
            _LOG.exception("a lease could not be renewed, and will be tried again")


def _next(memory: object) -> Holder | None:
    """Wait until something is due and return it; None, at the thread's end, if all left."""
    with _CHANGED:
        while mine := {
            each: at_s for each, at_s in _DUE_S.copy().items() if each.memory is memory
        }:
            holder = min(mine, key=mine.__getitem__)
            wait_s = mine[holder] - time.monotonic()
            if not holder.is_held:
                _DUE_S.pop(holder, None)
            elif wait_s > 0.0:
                _CHANGED.wait(wait_s)
            else:
                _DUE_S[holder] = time.monotonic() + holder.interval_s
                return holder
        _SERVED.discard(memory)
        return None


def _leave_all() -> None:
    """Free all places, at the exit of the interpreter."""
    for holder in _DUE_S.copy():
        holder.leave(timeout_s=LEAVE_TIMEOUT_S)


def _begin_anew() -> None:
    global _CHANGED  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _CHANGED = threading.Condition()
    _DUE_S.clear()  # the parent's threads do not run in a forked child
    _SERVED.clear()


os.register_at_fork(after_in_child=_begin_anew)
