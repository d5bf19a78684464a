"""Named locks among all processes and hosts; a lease limits how long a dead holder keeps one.

A lock is a roster with one place (smbox/roster.py). The process that takes the place holds the
lock and renews the lease in the background. Smart Memory Box 2 locks regions instead of names.

A holder that is stopped for longer than its lease may continue after another process has taken
the lock. The guarded resource should therefore refuse old holders by ``fence``, a fencing token
that grows with every holder (Kleppmann: How to do distributed locking, 2016).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Self

from smbox.deadline import check_seconds, deadline_of, left_s
from smbox.directory import Directory
from smbox.errors import ConfigError, RequestTimeoutError, SmboxError
from smbox.head import check_prefix
from smbox.heartbeat import LEAVE_TIMEOUT_S, Holder, drop
from smbox.lease import Lease, check_lease
from smbox.member_record import MemberInfo
from smbox.roster import Roster, regions_of

LEASE_S: Final = 10.0
_PLACE: Final = 0
_SUFFIX: Final = ".lock"
_SUFFIX_NBYTES: Final = max(map(len, regions_of(_SUFFIX)))


class Lock(Holder):
    """A named lock, made by ``Box.lock``; a ``with`` block acquires and releases it.

    A lock belongs to a process, not to a thread, and is not reentrant: of two Lock objects of
    one name only one is held at a time, even in one process. A killed holder loses the lock
    after its lease; a waiter on the same host finds out within a quarter of it. A restart of
    the node ends no hold. Waiting is not fair: any waiter may be next.

    Args:
        memory: the box.
        name: name of the lock, the prefix of its two regions NAME.lock.members and
            NAME.lock.members.records.
        lease_s: seconds without renewal after which the holder counts as dead.
        timeout_s: longest wait of ``acquire`` and of a ``with`` block, in seconds.

    Raises:
        TypeError, LimitError, ConfigError: an argument is invalid; nothing was created.
    """

    def __init__(
        self, memory: Directory, name: str, *, lease_s: float, timeout_s: float
    ) -> None:
        check_prefix(name, _SUFFIX_NBYTES)
        if not check_seconds(timeout_s) >= 0.0:
            raise ConfigError("timeout_s must be a number of seconds", timeout_s=timeout_s)
        check_lease(lease_s)
        roster = Roster(memory, name + _SUFFIX, capacity=1)
        super().__init__(roster, _PLACE, Lease(roster.place(_PLACE), lease_s))
        self.name = name
        self.timeout_s = timeout_s

    @property
    def fence(self) -> int:
        """The fencing token: a number larger than that of every earlier holder.

        Raises:
            LeaseLostError: this object does not hold the lock.
        """
        self.check()
        return self._lease.generation

    def holder(self) -> MemberInfo | None:
        """Return the holder of the lock now: host, pid, since; None if it is free."""
        view = self._roster.read()
        return None if view.is_free(_PLACE) else view.of(_PLACE)

    def acquire(self, *, timeout_s: float | None = None) -> int:
        """Wait for the lock and take it; return its fence.

        Args:
            timeout_s: longest wait, in seconds; None: ``timeout_s`` of the lock.

        Raises:
            RequestTimeoutError: another Lock object holds the lock, which was not taken; the
                error names its process. Or the node did not answer; the lock may be taken
                until a lease expires.
            LeaseLostError: the node was slow, and another process took the lock meanwhile.
            ConfigError: this object holds the lock already.
            LimitError: the lock was acquired 2^23 - 1 times; see docs/locks.md.
        """
        if self.is_held:
            raise ConfigError("the lock is held already: it is not reentrant", lock=self.name)
        wanted_s = self.timeout_s if timeout_s is None else check_seconds(timeout_s)
        deadline_s = deadline_of(wanted_s)
        lease = Lease(self._roster.place(_PLACE), self._lease.lease_s)
        try:  # not a context manager: an interrupt in its end would leave the lock taken
            self._take(lease, wanted_s, deadline_s)
            self._begin(lease, deadline_s)
            return lease.generation  # noqa: TRY300 - nothing may interrupt after the block
        except BaseException:
            if lease.is_held:  # otherwise another thread may hold the lock by this object
                self._lease = lease
                self._leave(min(deadline_s, deadline_of(LEAVE_TIMEOUT_S)))
            self.memory.not_before_close(lease)
            raise

    def _take(self, lease: Lease, wanted_s: float, deadline_s: float) -> None:
        """Wait until the lock is free, and take it; raises as ``acquire``."""
        while True:
            version = self._roster.version(deadline_s=deadline_s)
            view = self._roster.watch(_PLACE, deadline_s=deadline_s)
            wait_s = min(left_s(deadline_s), self._roster.poll_s(_PLACE))
            if view.is_free(_PLACE):
                if self._take_place(lease, view.generation(_PLACE), [0, 0], deadline_s):
                    return
            elif wait_s <= 0.0:
                raise _held(self.name, view.of(_PLACE), wanted_s)
            else:
                self._roster.wait(version, wait_s)

    def _write_record(self, deadline_s: float | None) -> None:
        with suppress(RequestTimeoutError):  # the lock is held; ``beat`` writes the record
            super()._write_record(deadline_s)

    def release(self) -> None:
        """Release the lock; call it again if it was interrupted or timed out.

        Otherwise the lock is free when the box is closed, or after its lease.

        Raises:
            LeaseLostError: this object did not hold the lock, or has lost it: another process
                may have used the guarded resource.
        """
        drop(self)
        lease = self._lease
        try:
            lease.check_process()  # the parent may have been releasing at the fork
            if not lease.is_leaving:
                lease.check()
            lease.leave()
        finally:
            if not (lease.is_held or lease.is_leaving):  # else a close of the box leaves it
                self.memory.not_before_close(lease)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; an error of the block takes precedence over one of the release."""
        try:
            self.release()
        except SmboxError:
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"Lock({self.name!r}, held={self.is_held})"


def _held(name: str, holder: MemberInfo, timeout_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(
        "another Lock object holds the lock: wait longer, or check the process that has it",
        op="lock",
        lock=name,
        host=holder.host,
        pid=holder.pid,
        since=None if holder.since is None else holder.since.isoformat(timespec="seconds"),
        timeout_s=timeout_s,
        outcome="none",
    )
