"""Membership: joining a run, the rank of a process, and the state of the other members.

The region ``NAME.members`` contains the places (smbox/lease.py describes their words), the
region ``NAME.members.records`` the records of their holders.
"""

from __future__ import annotations

from operator import index
from typing import Final, Self

from smbox import meeting
from smbox.box import Box
from smbox.errors import ConfigError, RankTakenError
from smbox.head import check_prefix
from smbox.heartbeat import LEAVE_TIMEOUT_S, Holder
from smbox.lease import Lease, check_lease
from smbox.member_record import RESTARTS, MemberInfo, hash_of
from smbox.roster import CAPACITY, LEASE, Roster, View, regions_of

LEASE_S: Final = 10.0
_PROGRESS, _MEETINGS = range(2)  # indices of the values of a lease


class Member(Holder):
    """The membership of a process in a run, made by ``smbox.join``; thread-safe.

    A thread renews the lease and reads the state of the others ``RENEWALS`` times per lease.
    The process leaves by :meth:`leave`, at the end of a ``with`` block, when the box closes, or
    when the interpreter exits. A killed process counts as dead when its lease expires. One that
    was stopped for longer keeps its rank if no other process has taken it; otherwise
    :meth:`check`, ``progress`` and :meth:`meet` raise LeaseLostError from then on.

    Attributes:
        rank: rank of this process, from 0.
        expected: number of members that the run was started with; 0: unknown.
        late: it joined after a member had expired or made progress.
        first: its rank is an expected one, and no process of this start had taken it. The
            others wait for it from their start on.
        lease_s: seconds without renewal after which it counts as dead.
        first_view: result of the last read before it took its rank.
        is_counted: another object, such as an optimizer, sets ``progress``.
    """

    def __init__(
        self,
        roster: Roster,
        lease: Lease,
        rank: int,
        *,
        expected: int,
        launch: int,
        restart: int,
    ) -> None:
        super().__init__(roster, rank, lease, launch=launch, restart=restart)
        self.first_view = view = roster.seen
        self.rank = rank
        self.expected = expected
        self.late = bool(view.expired() or view.dead_here or view.progress().any())
        self._before = view.before_start(expected, launch, restart)
        self.first = rank < expected and self._before[rank] != 0
        self.lease_s = lease.lease_s
        self.is_counted = False

    def take(self, generation: int, progress: int) -> bool:
        """Take the rank free in a generation; False: another was faster. Errors: ``leave``."""
        is_taken = self._take_place(self._lease, generation, [progress, 0])
        if is_taken:
            self._begin(self._lease)  # from now on others wait for it: their words are final
            view = self.seen
            self._set(_MEETINGS, meeting.first_word(view.meetings()[view.is_alive]))
        return is_taken

    @property
    def count(self) -> int:
        """Number of living members now, with this one; reads the node."""
        return self._read().count

    @property
    def workers(self) -> int:
        """Number of living members and expected ranks that never joined; sends no request."""
        return max(1, len(self.present))

    @property
    def never_came(self) -> list[int]:
        """Expected ranks that no process of this start has taken; sends no request.

        Ranks of an earlier start are among them. If such a holder lives, it renews its lease,
        and is a member from then on.
        """
        return self.seen.never_came(self._before)

    @property
    def present(self) -> list[int]:
        """Ranks of living members and those that never joined, sorted; sends no request."""
        return self.seen.present(self._before)

    @property
    def seen(self) -> View:
        """Result of the last read, at most a fraction of a lease old; sends no request."""
        return self._roster.seen

    def read(self, *, deaths: bool = True) -> View:
        """Read all places now; with ``deaths`` also which processes on this host have ended.

        Raises:
            RequestTimeoutError: the node did not answer.
            LeaseLostError: this is a forked child; only its parent has joined.
        """
        return self._read(deaths=deaths)

    def members(self) -> list[MemberInfo]:
        """Return the members that joined and did not leave, by rank, with dead ones."""
        view = self._read()
        return [view.of(rank) for rank in sorted(view.alive() + view.expired())]

    def missing(self) -> list[MemberInfo]:
        """Return the expired members and the expected ranks that never joined."""
        never_came = set(self._read().never_came(self._before))
        return [self.of(rank) for rank in sorted(never_came.union(self.seen.expired()))]

    def of(self, rank: int) -> MemberInfo:
        """Return the state of a rank at the last read; sends no request."""
        if rank in self.never_came:
            return MemberInfo.vacant(rank)
        return self.seen.of(rank)

    @property
    def progress(self) -> int:
        """Progress of this member, 0 to 2**40 - 1; initially that of its predecessor.

        An assignment returns once the value is at the node.

        Raises:
            LeaseLostError: another process has taken this rank; nothing was set.
            ConfigError: the value is out of range; nothing was set.
        """
        return self._lease.values[_PROGRESS]

    @progress.setter
    def progress(self, value: int) -> None:
        self._set(_PROGRESS, value)

    @property
    def met(self) -> int:
        """Number of the last meeting that it completed, or the others when it joined."""
        return self._lease.values[_MEETINGS] // 2

    def meet(self, *, timeout_s: float = meeting.MEET_TIMEOUT_S) -> None:
        """Wait until all living members, and expected ones that never joined, call this.

        It does not wait for members that died, left, or wait in :meth:`finish`. A member that
        joins later takes part from the next meeting on that is not complete.

        Raises:
            RequestTimeoutError: the error names the missing members. This member counts as
                present.
            LeaseLostError: another process has taken this rank.
        """
        self._meet(meeting.next_meeting(self._lease.values[_MEETINGS]), timeout_s)

    def finish(self, *, timeout_s: float | None = None) -> None:
        """Wait until all living members, and expected ones that never joined, call this.

        It does not wait for members that died or left, but for those in other meetings. From
        the call on, even after an error, meetings do not wait for this member until a
        ``finish`` has returned. Each minute a log line (WARNING) names the missing members.

        Args:
            timeout_s: longest wait, in seconds. None: no limit while a living member is
                missing, then MEET_TIMEOUT_S for expected members that never joined.

        Raises:
            RequestTimeoutError: the error names the missing members. Call ``finish`` again.
            LeaseLostError: another process has taken this rank.
            ConfigError: this member has finished 127 times; nothing changed.
        """
        self._meet(meeting.next_end(self._lease.values[_MEETINGS]), timeout_s)

    def _meet(self, number: int, timeout_s: float | None) -> None:
        wait = meeting.MeetingWait(timeout_s)
        deadline_s = wait.deadline_s
        self._set(_MEETINGS, 2 * number - 1, deadline_s)
        while True:
            version = self._roster.version(deadline_s=deadline_s)
            absent = self._absent(number, deadline_s)
            if not absent:
                break
            wait_s = min(wait.left_s(absent), self.interval_s)
            self._lease.check(deadline_s=deadline_s)
            self._roster.wait(version, wait_s)
        self._set(_MEETINGS, 2 * number, deadline_s)

    def _absent(self, number: int, deadline_s: float | None) -> list[MemberInfo]:
        """Return the members that a meeting waits for."""
        view = self._read(deadline_s)
        is_here = meeting.has_arrived(view.meetings(), number)
        is_here[view.never_came(self._before)] = False
        return [self.of(rank) for rank in view.present(self._before) if not is_here[rank]]

    def _write_record(self, deadline_s: float | None) -> None:
        super()._write_record(deadline_s)
        self._read(deadline_s)  # ``seen`` contains this member from now on

    def _refresh(self, deadline_s: float) -> None:
        self._roster.ask_node(self.answer_s)
        super()._refresh(deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Member(rank={self.rank}, lease_s={self.lease_s})"


def join(
    box: Box,
    name: str,
    *,
    rank: int | None = None,
    expected: int = 0,
    lease_s: float = LEASE_S,
    launch: str = "",
    restart: int = 0,
) -> Member:
    """Take a rank of a run and renew its lease; see :class:`Member`.

    Args:
        box: the box with the memory; when it closes, the process leaves.
        name: name of the run, the prefix of its regions.
        rank: the rank that a launcher gave to this process; ``join`` waits up to a lease for a
            predecessor that may be dead. None: the lowest rank that is free or expired.
        expected: number of members that the run is started with.
        lease_s: seconds without renewal after which this process counts as dead.
        launch: a launcher's id of the run. The process takes over the progress of a predecessor
            of the same launch; without an id, only of one that expired. With an id, expected
            ranks count as never joined until a process of this start takes them.
        restart: how often the launcher has restarted all members; each is a start of its own.

    Raises:
        TypeError, ConfigError: an argument is invalid; the process did not join.
        RankTakenError: a living process has this rank; the error names host and pid.
        LimitError: all ranks are taken, or this one 2^23 - 1 times; or the name is too long.
        RequestTimeoutError: the node did not answer; a rank may stay taken for a lease.
    """
    for each, given, kind in (("box", box, Box), ("launch", launch, str)):
        if not isinstance(given, kind):
            raise TypeError(f"{each} must be a {kind.__name__}, not {type(given).__name__}")
    check_prefix(name, max(map(len, regions_of(""))))
    if rank is not None and not 0 <= index(rank) < CAPACITY:
        raise ConfigError(f"a rank must be at least 0 and below {CAPACITY}", rank=rank)
    if not 0 <= index(restart) < RESTARTS:
        raise ConfigError(f"restart must be at least 0 and below {RESTARTS}", restart=restart)
    if not 0 <= index(expected) <= CAPACITY:
        raise ConfigError(f"a run has at most {CAPACITY} members", expected=expected)
    check_lease(lease_s)
    roster, start = Roster(box.home_of(name), name), hash_of(launch)
    while True:
        view = roster.seen if rank is None else _await_place(roster, rank)
        place = view.lowest_free() if rank is None else rank
        generation, view = view.generation(place), roster.read()  # as its last holder left it
        lease = Lease(roster.place(place), lease_s)
        member = Member(roster, lease, place, expected=expected, launch=start, restart=restart)
        progress = _first_progress(view, place, start, restart)
        try:
            if view.generation(place) == generation and member.take(generation, progress):
                return member
        except BaseException:
            member.leave(timeout_s=LEAVE_TIMEOUT_S)
            raise


def _first_progress(view: View, rank: int, launch: int, restart: int) -> int:
    """Return the initial progress of a new holder of a rank."""
    before = view.records[rank]
    is_successor = before is not None and before.launch == launch
    # Without a launch, one that left may have finished an earlier run of the same name.
    is_other_run = view.has_left(rank) and launch == 0 and restart == 0
    return view.of(rank).progress if is_successor and not is_other_run else 0


def _await_place(roster: Roster, rank: int) -> View:
    """Wait until a rank is free; raise RankTakenError once its holder renews its lease."""
    first = view = roster.read()
    while not view.is_free(rank):
        roster.wait(roster.version(), roster.poll_s(rank))
        view = roster.watch(rank, fails=True)
        if view.is_alive[rank] and view.words[rank, LEASE] != first.words[rank, LEASE]:
            holder = view.of(rank)
            raise RankTakenError(
                "a living process has this rank: end that process, or join under another rank"
                " (if it is this process, close its first optimizer, or use another name)",
                rank=rank,
                host=holder.host,
                pid=holder.pid,
            )
    return view
