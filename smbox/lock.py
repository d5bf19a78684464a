"""Locks: one holder at a time among all processes and hosts, kept by a lease.

A lock is a roster of one place (smbox/roster.py): whoever takes the place holds the lock, and
renews the lease in the background. Smart Memory Box 2 has locks of regions; these have names.

A holder that is stopped for longer than its lease may wake up after somebody else has taken
the lock. So what it guards should refuse old holders: ``fence`` grows with every holder
(Kleppmann: How to do distributed locking, 2016, calls it a fencing token).
"""

from __future__ import annotations

from typing import Final, Self

from smbox.deadline import check_seconds, deadline_of, left_s
from smbox.directory import Directory
from smbox.errors import ConfigError, RequestTimeoutError, SmboxError
from smbox.head import check_prefix
from smbox.heartbeat import Holder
from smbox.lease import Lease, check_lease
from smbox.member_record import MemberInfo
from smbox.roster import Roster, regions_of

LEASE_S: Final = 10.0
_PLACE: Final = 0
_SUFFIX: Final = ".lock"
_ROOM_NBYTES: Final = max(map(len, regions_of(_SUFFIX)))


class Lock(Holder):
    """A named lock, made by ``Box.lock``; a context manager, which acquires and releases it.

    It belongs to the process that acquires it, not to a thread, and is not reentrant: of two
    Lock objects of one name only one is held at a time, in the same process too. A killed
    holder loses it after its lease, on the same host at once; a restart of the node takes it
    from nobody. Waiting is not fair: any waiter may be next.

    Args:
        memory: the box.
        name: of the lock: prefix of its two regions, NAME.lock.members and .records.
        lease_s: seconds without renewal after which the holder counts as dead.
        timeout_s: how long ``acquire`` and a ``with`` block wait, in seconds.

    Raises:
        TypeError, LimitError, ConfigError: impossible arguments; nothing was made.
    """

    def __init__(
        self, memory: Directory, name: str, *, lease_s: float, timeout_s: float
    ) -> None:
        check_prefix(name, _ROOM_NBYTES)
        if not timeout_s >= 0.0:
            raise ConfigError("timeout_s is a number of seconds", timeout_s=timeout_s)
        check_lease(lease_s)
        roster = Roster(memory, f"{name}{_SUFFIX}", capacity=1)
        super().__init__(roster, _PLACE, Lease(roster.place(_PLACE), lease_s))
        self.name = name
        self.timeout_s = timeout_s

    @property
    def fence(self) -> int:
        """A number that is larger than that of every earlier holder.

        Raises:
            LeaseLostError: this lock is not held.
        """
        self.check()
        return self._lease.generation

    def holder(self) -> MemberInfo | None:
        """Return who holds the lock now: host, pid, since; None: nobody."""
        view = self._roster.look()
        return None if view.is_free(_PLACE) else view.of(_PLACE)

    def acquire(self, *, timeout_s: float | None = None) -> int:
        """Wait for the lock and take it; return its fence.

        Args:
            timeout_s: longest wait, in seconds; None: that of the lock.

        Raises:
            RequestTimeoutError: somebody else holds it, whom the error names; it was not
                taken. Or the node did not answer: then it may be taken until a lease passes.
            ConfigError: this object holds the lock already.
        """
        if self.is_held:
            raise ConfigError("this lock is held already: it is not reentrant", lock=self.name)
        wanted_s = self.timeout_s if timeout_s is None else check_seconds(timeout_s)
        deadline_s = deadline_of(wanted_s)
        lease = Lease(self._roster.place(_PLACE), self._lease.lease_s)
        while True:
            version = self._roster.version(deadline_s=deadline_s)
            view = self._roster.watch(_PLACE, deadline_s=deadline_s)
            wait_s = min(left_s(deadline_s), self._roster.look_s(_PLACE))
            if view.is_free(_PLACE):
                if lease.take(view.generation(_PLACE), [0, 0], deadline_s=deadline_s):
                    break
            elif wait_s <= 0.0:
                raise _held(self.name, view.of(_PLACE), wanted_s)
            else:
                self._roster.wait(version, wait_s)
        self._lease = lease
        self._begin(deadline_s)
        return lease.generation

    def release(self) -> None:
        """Let the next one have the lock; the lease ends it where the node does not answer.

        Raises:
            LeaseLostError: it was not held, or has been lost meanwhile: what it guarded was
                not guarded all the time.
        """
        self._end()
        self._lease.check()
        self._lease.leave()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release; an error of the block counts more than one of the release."""
        try:
            self.release()
        except SmboxError:
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"Lock({self.name!r}, held={self.is_held})"


def _held(name: str, holder: MemberInfo, timeout_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(
        "another process holds the lock: wait longer, or see what it does",
        op="lock",
        lock=name,
        host=holder.host,
        pid=holder.pid,
        since=None if holder.since is None else holder.since.isoformat(timespec="seconds"),
        timeout_s=timeout_s,
        outcome="none",
    )
