"""Runs that are started again on one memory: whom the members of a start wait for."""

from __future__ import annotations

from typing import Any

import pytest

from smbox.errors import RequestTimeoutError
from smbox.lease import Lease
from smbox.member_record import Record
from smbox.membership import Member
from smbox.roster import View

WAIT_S = 60.0


@pytest.mark.parametrize("start", [{"launch": "second"}, {"launch": "first", "restart": 1}])
def test_ranks_of_an_earlier_start_have_never_come(box, until, join, start):
    earlier = [join(box, rank=rank, expected=2, launch="first") for rank in range(2)]
    assert [each.first for each in earlier] == [True, True]
    for each in earlier:
        each.leave()
    one = join(box, rank=0, expected=2, **start)
    assert (one.first, one.count, one.workers, one.never_came) == (True, 1, 2, [1])
    assert [(each.rank, each.pid) for each in one.missing()] == [(1, None)]
    with pytest.raises(RequestTimeoutError, match=r"rank 1 \(never came\)"):
        one.finish(timeout_s=0.05)
    other = join(box, rank=1, expected=2, **start)
    assert (other.first, other.workers, other.never_came) == (True, 2, [])
    until(lambda: one.never_came == [])
    other.leave()
    until(lambda: one.workers == 1)
    assert one.missing() == []
    one.finish(timeout_s=WAIT_S)


def test_a_killed_member_of_an_earlier_start_has_never_come(box, until, join, die):
    killed = join(box, rank=1, expected=2, launch="run")
    one = join(box, rank=0, expected=2, launch="run", restart=1)
    assert (one.workers, one.present, one.never_came) == (2, [0, 1], [1])
    die(killed)
    until(lambda: one.count == 1)
    assert (one.workers, one.never_came) == (2, [1])


@pytest.mark.parametrize("start", [{"launch": "second"}, {"launch": "first", "restart": 1}])
@pytest.mark.parametrize("verb", ["meet", "finish"])
def test_nobody_meets_a_killed_member_of_an_earlier_start(box, join, die, start, verb):
    killed = join(box, rank=0, expected=2, launch="first")
    with pytest.raises(RequestTimeoutError):
        getattr(killed, verb)(timeout_s=0.0)  # it counts as present
    die(killed)
    one = join(box, rank=1, expected=2, **start)
    assert 0 in one.read().alive()  # its lease has not expired yet
    with pytest.raises(RequestTimeoutError, match=r"rank 0 \(never came\)"):
        getattr(one, verb)(timeout_s=0.05)


def test_a_living_member_with_a_lower_restart_is_not_of_an_earlier_start(box, until, join):
    """Agents of torchrun on several hosts may count restarts differently."""
    other = join(box, rank=1, expected=2, launch="run")
    with join(box, rank=0, expected=2, launch="run", restart=1) as one:
        word = one.seen.words[1, 0]
        until(lambda: one.seen.words[1, 0] != word)  # it has renewed its lease
        other.leave()
        until(lambda: one.count == 1)
        assert (one.never_came, one.workers) == ([], 1)


def test_a_restart_without_a_launch_continues_whoever_left(box, join):
    with join(box, rank=0) as member:
        member.progress = 5
    with join(box, rank=0, restart=1) as member:
        assert member.progress == 5
    with join(box, rank=0) as member:
        assert member.progress == 0


@pytest.mark.parametrize("launch", ["", "run"])
def test_who_left_this_start_is_not_waited_for(box, join, launch):
    with join(box, rank=1, expected=2, launch=launch):
        pass
    with join(box, rank=0, expected=2, launch=launch) as one:
        assert (one.workers, one.missing()) == (1, [])
    with join(box, rank=0, expected=2, launch=launch) as again:
        assert not again.first


def test_living_members_of_another_launch_are_no_earlier_start(box, until, join):
    other = join(box, rank=1, expected=2, launch="other")
    with join(box, rank=0, expected=2, launch="one") as one:
        other.leave()
        until(lambda: one.workers == 1)
        one.finish(timeout_s=WAIT_S)


@pytest.mark.parametrize("start", [{}, {"restart": 1}])
def test_a_start_without_a_launch_finds_the_members_of_any_launch(box, join, start):
    other = join(box, rank=1, expected=2, launch="run", lease_s=WAIT_S)
    with join(box, rank=0, expected=2, **start) as one:
        assert (one.never_came, one.workers) == ([], 2)
    other.leave()


@pytest.mark.parametrize(("leaves", "progress"), [(False, 7), (True, 0)])
def test_a_successor_knows_what_its_predecessor_did_last(
    box, join, die, monkeypatch, leaves, progress
):
    """Without a launch it begins anew if the predecessor left."""
    earlier = join(box)
    earlier.progress = 5
    ended, living = earlier.seen.records[0], [earlier]

    def act_and_end(record: Record) -> bool:
        if living:
            living.pop().progress = 7
            if leaves:
                earlier.leave()
            die(earlier)
        return record == ended

    monkeypatch.setattr(Record, "is_known_dead", act_and_end)
    with join(box) as successor:
        assert (successor.rank, successor.progress) == (0, progress)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_is_late_if_another_died_but_not_if_it_left(
    box, join, die, monkeypatch, leaves
):
    """One that left and ended while a process joined counted as dead."""
    earlier = join(box, rank=1)
    ended, living = earlier.seen.records[1], [earlier]

    def leave_and_end(record: Record) -> bool:
        if living:
            living.pop()
            if leaves:
                earlier.leave()
            die(earlier)
        return record == ended

    monkeypatch.setattr(Record, "is_known_dead", leave_and_end)
    with join(box) as successor:
        assert successor.rank == 0
        assert successor.late is not leaves


def test_a_member_that_joins_during_the_count_of_workers_is_counted_once(
    box, join, monkeypatch
):
    one, others, seen = join(box, rank=0, expected=2), [], Member.seen.fget
    ranks = [1]

    def seen_before_another_joins(member: Member) -> View:
        found = seen(member)
        if ranks:
            others.append(join(box, rank=ranks.pop(), expected=2))
            one.read()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Member, "seen", property(seen_before_another_joins))
        assert one.workers == 2
    for each in (one, *others):
        each.leave()


def test_a_member_begins_with_a_meeting_that_the_others_complete_while_it_joins(
    box, join, monkeypatch
):
    one, take = join(box), Lease.take

    def met_and_taken(lease: Lease, *args: Any, **settings: Any) -> bool:
        one.meet(timeout_s=WAIT_S)
        return take(lease, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "take", met_and_taken)
        late = join(box)
    assert (one.met, late.met) == (1, 1)
    for each in (one, late):
        each.leave()


def test_progress_is_taken_over_from_who_left_before_a_restart(box, join):
    with join(box) as member:
        member.progress = 5
    with join(box, restart=1) as member:
        assert (member.rank, member.progress) == (0, 5)
    with join(box) as member:  # without a launch or a restart it is another run
        assert (member.rank, member.progress) == (0, 0)
