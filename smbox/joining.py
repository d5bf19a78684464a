"""Joining a run: a process takes a rank that is free, or whose holder is dead."""

from __future__ import annotations

from functools import partial
from typing import Final

from smbox import heartbeat
from smbox.box import Box
from smbox.errors import ConfigError, LimitError, RankTakenError
from smbox.lease import LEFT, RENEWALS, Lease, check_lease, generations, numbers
from smbox.meeting import first_word
from smbox.member_record import hash_of
from smbox.membership import Member
from smbox.naming import check_prefix
from smbox.roster import CAPACITY, LEASE, MEETINGS, Roster, View, regions_of

LEASE_S: Final = 10.0
_ROOM_NBYTES: Final = max(map(len, regions_of("")))


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
    roster = Roster(box.home_of(name), name, check_lease(lease_s))
    while True:
        view = roster.seen if rank is None else _await_place(roster, rank)
        place = _lowest_free(view) if rank is None else rank
        lease = Lease(roster.place(place), lease_s)
        if lease.take(
            int(generations(view.words[place, LEASE])), _first_values(view, place, launch)
        ):
            break
        roster.look()
    member = Member(
        roster,
        lease,
        place,
        expected=expected,
        late=bool(view.expired() or view.dead_here() or view.progress().any()),
        launch=hash_of(launch),
    )
    heartbeat.keep(member)
    box.before_close(partial(member.leave, timeout_s=heartbeat.LEAVE_TIMEOUT_S))
    return member


def _lowest_free(view: View) -> int:
    is_free = ~view.is_alive
    is_free[list(view.dead_here())] = True
    if not is_free.any():
        raise LimitError(f"a run has at most {CAPACITY} members, and all are alive")
    return int(is_free.argmax())


def _first_values(view: View, rank: int, launch: str) -> list[int]:
    """Return progress and meetings that a new holder of a rank begins with."""
    before = view.record(rank)
    has_left = int(numbers(view.words[rank, LEASE])) == LEFT
    is_successor = before is not None and before.launch == hash_of(launch)
    if has_left and not launch:
        is_successor = False  # without a launcher this may be another run of the same name
    progress = int(view.progress()[rank]) if is_successor else 0
    return [progress, first_word(numbers(view.words[view.is_alive, MEETINGS]))]


def _await_place(roster: Roster, rank: int) -> View:
    """Look until a place is free; RankTakenError once its holder shows that it is alive."""
    first = roster.look()
    view = first
    while not view.is_free(rank):
        roster.wait(roster.version(), roster.lease_s(rank) / RENEWALS)
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
