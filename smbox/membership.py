"""Membership: joining a run, the rank of a process, and the state of the other members.

Places lie in the region ``NAME.members`` (smbox/lease.py has their words), who holds them in
``NAME.members.records``.
"""

from __future__ import annotations

from typing import Final, Self

from smbox.box import Box
from smbox.errors import ConfigError, LimitError, RankTakenError
from smbox.head import check_prefix
from smbox.heartbeat import Holder
from smbox.lease import Lease, check_lease, numbers
from smbox.meeting import MEET_TIMEOUT_S, MeetingWait, end, first_word, following, has_come
from smbox.member_record import MemberInfo, hash_of
from smbox.roster import CAPACITY, LEASE, MEETINGS, Roster, View, regions_of

LEASE_S: Final = 10.0
_ROOM_NBYTES: Final = max(map(len, regions_of("")))
_PROGRESS, _MEETINGS = range(2)  # values of a lease: columns behind the lease word


class Member(Holder):
    """A process's place in a run, made by ``smbox.join``; thread-safe, a context manager.

    A thread renews the lease and looks for the others ``RENEWALS`` times per lease. The process
    leaves by :meth:`leave`, when the box closes, or when the interpreter exits; a killed one
    is out when its lease has passed. A process that was stopped for longer goes on if nobody
    has taken its rank; else :meth:`check`, ``progress`` and :meth:`meet` raise LeaseLostError
    from then on.

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
        super().__init__(roster, rank, lease, launch=launch)
        self.rank = rank
        self.expected = expected
        self.late = late
        self.lease_s = lease.lease_s
        self.is_counted = False
        self._begin()

    @property
    def count(self) -> int:
        """Living members now, this one too."""
        return self.look().count

    @property
    def workers(self) -> int:
        """Living members, and those expected that never came; as of the last look."""
        return max(1, self.seen.count + len(self.seen.never_came(self.expected)))

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

    def members(self) -> list[MemberInfo]:
        """Return members that joined and did not leave, by rank; dead ones until replaced."""
        view = self.look()
        return [view.of(rank) for rank in sorted(view.alive() + view.expired())]

    def missing(self) -> list[MemberInfo]:
        """Return the expired members and the expected ranks that never joined."""
        view = self.look()
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
        """Return the members that a meeting waits for."""
        view = self._look(deadline_s)
        is_here = has_come(numbers(view.words[:, MEETINGS]), number)
        late = [rank for rank in view.alive() if not is_here[rank]]
        return [view.of(rank) for rank in late + view.never_came(self.expected)]

    def _introduce(self, deadline_s: float | None) -> None:
        super()._introduce(deadline_s)
        self._look(deadline_s)  # so that the last look knows this member, too

    def _watch(self) -> View:
        self._roster.ask_node(self.interval_s)
        return super()._watch()

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
) -> Member:
    """Take a rank of a run and keep it; see :class:`Member`.

    Args:
        box: the memory; when it closes, the process leaves.
        name: of the run: prefix of the regions.
        rank: of this process, where a launcher gave it one; it waits up to a lease for a
            predecessor that may be dead. None: the lowest that is free or expired.
        expected: how many members the run is started with.
        lease_s: seconds without renewal after which this process counts as dead.
        launch: what a launcher calls this run. Progress is taken over from a predecessor of
            the same launch; without one, from a predecessor that expired.

    Raises:
        TypeError, ConfigError: impossible arguments; the process did not join.
        RankTakenError: a living process has this rank; the error names host and pid.
        LimitError: all ranks are taken, or the name is empty or has more than 184 bytes.
        RequestTimeoutError: the node did not answer; a rank may be taken until a lease passes.
    """
    check_prefix(name, _ROOM_NBYTES)
    if rank is not None and not 0 <= rank < CAPACITY:
        raise ConfigError(f"a rank is at least 0 and below {CAPACITY}", rank=rank)
    if not 0 <= expected <= CAPACITY:
        raise ConfigError(f"a run has at most {CAPACITY} members", expected=expected)
    check_lease(lease_s)
    roster = Roster(box.home_of(name), name)
    while True:
        view = roster.seen if rank is None else _await_place(roster, rank)
        place = _lowest_free(view) if rank is None else rank
        lease = Lease(roster.place(place), lease_s)
        if lease.take(view.generation(place), _first_values(view, place, launch)):
            break
        roster.look()
    return Member(
        roster,
        lease,
        place,
        expected=expected,
        late=bool(view.expired() or view.dead_here() or view.progress().any()),
        launch=hash_of(launch),
    )


def _lowest_free(view: View) -> int:
    found = next(filter(view.is_free, range(CAPACITY)), None)
    if found is None:
        raise LimitError(f"a run has at most {CAPACITY} members, and all are alive")
    return found


def _first_values(view: View, rank: int, launch: str) -> list[int]:
    """Return progress and meetings that a new holder of a rank begins with."""
    before = view.records[rank]
    is_successor = before is not None and before.launch == hash_of(launch)
    if view.has_left(rank) and not launch:
        is_successor = False  # without a launcher this may be another run of the same name
    progress = int(view.progress()[rank]) if is_successor else 0
    return [progress, first_word(numbers(view.words[view.is_alive, MEETINGS]))]


def _await_place(roster: Roster, rank: int) -> View:
    """Look until a place is free; RankTakenError once its holder shows that it is alive."""
    first = view = roster.look()
    while not view.is_free(rank):
        roster.wait(roster.version(), roster.look_s(rank))
        view = roster.watch(rank)
        if view.is_alive[rank] and view.words[rank, LEASE] != first.words[rank, LEASE]:
            holder = view.of(rank)
            raise RankTakenError(
                "a living process has this rank: end it, or join under another rank",
                rank=rank,
                host=holder.host,
                pid=holder.pid,
            )
    return view
