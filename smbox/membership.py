"""Membership: a process's place in a run, and who else is alive, under which rank and how far.

Places lie in the region ``NAME.members`` (smbox/lease.py has their words), who holds them in
``NAME.members.records``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Self

from smbox import heartbeat
from smbox.deadline import deadline_given, deadline_of
from smbox.errors import SmboxError
from smbox.lease import RENEWALS, Lease, numbers
from smbox.meeting import MEET_TIMEOUT_S, MeetingWait, end, following, has_come
from smbox.member_record import Record
from smbox.roster import MEETINGS, MemberInfo, Roster, View

_LOG = logging.getLogger(__name__)

_PROGRESS, _MEETINGS = range(2)  # values of a lease: columns behind the lease word


class Member:
    """A process's place in a run, made by ``smbox.join``; thread-safe, a context manager.

    A thread renews the lease and looks for the others ``RENEWALS`` times per lease. The process
    leaves by :meth:`leave`, when the box closes, or when the interpreter exits; a killed one
    is out when its lease has passed. A process that was
    stopped for longer goes on if nobody has taken its rank; else :meth:`check`, ``progress``
    and :meth:`meet` raise LeaseLostError from then on.

    Attributes:
        rank: of this process, from 0.
        expected: how many members the run was started with; 0: unknown.
        late: whether it joined after somebody had expired, or after progress was made.
        lease_s: seconds without renewal after which it counts as dead.
        is_counted: whether ``progress`` is somebody's to set, an optimizer's for one.
    """

    def __init__(
        self, roster: Roster, lease: Lease, rank: int, *, expected: int, late: bool, launch: int
    ) -> None:
        self.rank = rank
        self.expected = expected
        self.late = late
        self.lease_s = lease.lease_s
        self.interval_s = lease.lease_s / RENEWALS
        self.memory = roster.memory
        self.is_counted = False
        self._roster = roster
        self._lease = lease
        self._record = Record.own(lease_s=lease.lease_s, launch=launch)
        self._introduce()
        self.look()

    @property
    def count(self) -> int:
        """Living members now, this one too."""
        return self.look().count

    @property
    def workers(self) -> int:
        """Living members, and those expected that never came; as of the last look."""
        view = self._roster.seen
        return max(1, view.count + view.missing(self.expected))

    @property
    def seen(self) -> View:
        """The last look, at most a fraction of a lease old; asks the node nothing."""
        return self._roster.seen

    def look(self) -> View:
        """Read all places now.

        Raises:
            RequestTimeoutError: the node did not answer.
            LeaseLostError: this is a forked child; the parent has joined, not the child.
        """
        return self._look()

    def _look(self, deadline_s: float | None = None) -> View:
        self._lease.check_process()
        return self._roster.look(mine=self._held_rank(), deadline_s=deadline_s)

    def _held_rank(self) -> int | None:
        return self.rank if self._lease.is_held else None

    def members(self) -> list[MemberInfo]:
        """Return who joined and did not leave, by rank; the dead too, until replaced."""
        view = self.look()
        return [view.of(rank) for rank in sorted(view.alive() + view.expired())]

    def missing(self) -> list[MemberInfo]:
        """Return who expired, and which of the expected ranks never came."""
        return self._missing(self.look())

    def _missing(self, view: View) -> list[MemberInfo]:
        ranks = view.expired() + view.never_came(self.expected)
        return [view.of(rank) for rank in sorted(ranks)]

    @property
    def progress(self) -> int:
        """How far this member is, 0 to 2**40 - 1; begins where its predecessor was.

        Setting it tells the node at once.

        Raises:
            LeaseLostError: another process has taken this rank; nothing was set.
            ConfigError: out of range; nothing was set.
        """
        return self._lease.values[_PROGRESS]

    @progress.setter
    def progress(self, value: int) -> None:
        self._lease.set(_PROGRESS, value)

    def check(self) -> None:
        """Raise LeaseLostError if another process has this rank now.

        Asks the node only if the lease was not renewed in time.
        """
        self._lease.check()

    def meet(self, *, timeout_s: float = MEET_TIMEOUT_S) -> None:
        """Return when all living members, and the expected who never came, have called this.

        Who died or left is not waited for, nor who waits in :meth:`finish`. A member that joins
        later takes part from the next meeting on that has not been held.

        Raises:
            RequestTimeoutError: somebody did not come; the error names who. This member counts
                as having come.
            LeaseLostError: another process has taken this rank.
        """
        self._meet(following(self._lease.values[_MEETINGS]), timeout_s)

    def finish(self, *, timeout_s: float | None = None) -> None:
        """Return when all living members, and the expected who never came, have called this.

        Who died or left is not waited for; who is in another meeting is. From the call on, also
        after an error, meetings do not wait for this member, until a ``finish`` returned. After
        each minute of waiting a line of the log (WARNING) names who is missing.

        Args:
            timeout_s: longest wait. None: as long as somebody lives who has not come, then
                MEET_TIMEOUT_S for the expected who never came.

        Raises:
            RequestTimeoutError: somebody did not come; the error names who. Call again.
            LeaseLostError: another process has taken this rank.
            ConfigError: this member has finished 127 times; nothing changed.
        """
        self._meet(end(self._lease.values[_MEETINGS]), timeout_s)

    def _meet(self, number: int, timeout_s: float | None) -> None:
        wait = MeetingWait(timeout_s)
        deadline_s = wait.deadline_s
        self._lease.set(_MEETINGS, 2 * number - 1, deadline_s=deadline_s)
        while True:
            version = self._roster.version(deadline_s=deadline_s)
            absent = self._absent(number, deadline_s)
            if not absent:
                break
            wait_s = min(wait.left_s(absent), self.interval_s)
            self._lease.check(deadline_s=deadline_s)
            self._roster.wait(version, wait_s)
        self._lease.set(_MEETINGS, 2 * number, deadline_s=deadline_s)

    def _absent(self, number: int, deadline_s: float | None) -> list[MemberInfo]:
        """Return whom a meeting waits for."""
        view = self._look(deadline_s)
        is_here = has_come(numbers(view.words[:, MEETINGS]), number)
        late = [rank for rank in view.alive() if not is_here[rank]]
        return [view.of(rank) for rank in late + view.never_came(self.expected)]

    def leave(self, *, timeout_s: float | None = None) -> None:
        """Leave the run: nobody waits for this process, and its rank is free. Idempotent.

        Where the node does not answer, the rank is free when the lease has passed.

        Args:
            timeout_s: to wait for the node; None: the box's.
        """
        heartbeat.drop(self)
        with suppress(SmboxError):
            self._lease.leave(deadline_s=deadline_given(timeout_s))

    def beat(self) -> None:
        """Renew the lease and look for the others; the heartbeat's thread calls this."""
        if not self._lease.try_to_renew(deadline_of(self.interval_s)):
            heartbeat.drop(self)
            return
        try:
            self._roster.ask_node(self.interval_s)
            deadline_s = deadline_of(self.interval_s)
            view = self._look(deadline_s)
            if view.record(self.rank) is None:
                self._introduce(deadline_s)
        except SmboxError as error:
            _LOG.debug("the others could not be looked for: %s", error)

    def _introduce(self, deadline_s: float | None = None) -> None:
        """Write down who holds this rank."""
        record = replace(self._record, generation=self._lease.generation)
        self._roster.write(self.rank, record, deadline_s=deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Member(rank={self.rank}, lease_s={self.lease_s})"
