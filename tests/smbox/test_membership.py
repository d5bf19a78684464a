"""Members of a run within one process; tests/integration/test_membership.py kills real ones."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta

import pytest

import smbox
from smbox.errors import ConfigError, LeaseLostError, RankTakenError, RequestTimeoutError
from smbox.heartbeat import INTERVAL_MIN_S
from smbox.lease import Lease
from smbox.roster import Roster

LEASE_S = 0.6
WAIT_S = 60.0


def test_members_get_the_lowest_ranks_and_know_each_other(box, join):
    before = datetime.now(tz=UTC)
    first = join(box, lease_s=WAIT_S, expected=2)
    second = join(box)
    assert first.missing() == []
    assert (first.rank, second.rank, first.count, second.count) == (0, 1, 2, 2)
    second.progress = 7
    found = first.members()
    assert [each.rank for each in found] == [0, 1]
    assert {each.host for each in found} == {socket.gethostname()}
    assert {each.pid for each in found} == {os.getpid()}
    assert all(abs(each.since - before) < timedelta(minutes=5) for each in found)
    assert [each.alive for each in found] == [True, True]
    assert [each.progress for each in found] == [0, 7]
    assert first.missing() == []
    first.leave()
    second.leave()


def test_members_that_join_at_once_get_different_ranks(box, join):
    begin, members = threading.Barrier(6), []

    def compete():
        begin.wait(WAIT_S)
        members.append(join(box))

    threads = [threading.Thread(target=compete) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(member.rank for member in members) == list(range(6))
    assert members[0].count == 6


def test_runs_of_other_names_are_apart(box, join):
    with join(box) as one, smbox.join(box, "other") as other:
        assert (one.rank, other.rank, one.count, other.count) == (0, 0, 1, 1)


def test_a_living_member_stays_for_many_leases(box, join):
    with join(box, lease_s=0.2) as one, join(box, lease_s=0.2) as other:
        ends_s = time.monotonic() + 1.5
        while time.monotonic() < ends_s:
            assert one.count == other.count == 2 or is_starved()
            time.sleep(0.02)
        one.check()
        other.check()


def is_starved():
    """Return True if this machine delays threads that are ready to run."""
    began_s = time.monotonic()
    time.sleep(0.001)
    return time.monotonic() - began_s > 0.02


def test_who_does_not_renew_is_out_after_its_lease_and_named(box, until, join, die):
    other, one = join(box), join(box)
    die(other)
    began_s = time.monotonic()
    assert one.count == 2
    until(lambda: one.count == 1)
    assert time.monotonic() - began_s > LEASE_S / 2
    assert [(each.rank, each.pid, each.alive) for each in one.missing()] == [
        (0, os.getpid(), False)
    ]
    assert [(each.rank, each.alive) for each in one.members()] == [(0, False), (1, True)]
    one.leave()


def test_a_member_with_a_long_lease_checks_one_with_a_short_lease_in_time(box, join, die):
    one, other = join(box, lease_s=WAIT_S), join(box, lease_s=0.1)
    assert (one.interval_s, other.interval_s) == (WAIT_S / 4, 0.1 / 4)
    one.beat()
    assert (one.interval_s, one.answer_s) == (0.1 / 4, WAIT_S / 4)
    die(other)
    one.meet(timeout_s=5.0)
    assert [each.rank for each in one.missing()] == [other.rank]


def test_no_lease_of_another_one_makes_a_member_busy(box, join, monkeypatch):
    one = join(box, lease_s=WAIT_S)
    monkeypatch.setattr(Lease, "renew", lambda *_, **__: None)  # so that it never expires
    join(box, lease_s=1e-9)
    one.beat()
    assert one.interval_s == INTERVAL_MIN_S


def test_an_expired_rank_is_taken_with_its_progress_and_its_holder_is_told(
    box, until, join, die
):
    one, other = join(box), join(box)
    other.progress = 41
    die(other)
    until(lambda: one.count == 1)
    successor = join(box)
    assert (successor.rank, successor.progress, successor.late) == (1, 41, True)
    with pytest.raises(LeaseLostError):
        other.progress = 99
    with pytest.raises(LeaseLostError):
        other.check()
    other.leave()
    assert [each.progress for each in one.members()] == [0, 41]
    assert one.count == 2


def test_who_was_stopped_goes_on_if_nobody_took_its_rank(box, until, join, die):
    one, other = join(box), join(box)
    die(other)
    until(lambda: one.count == 1)
    other.progress = 3
    assert one.count == 2
    assert one.missing() == []
    other.check()


def test_progress_of_another_launch_is_not_taken_over(box, join):
    with join(box, rank=2, launch="first") as member:
        member.progress = 5
    with join(box, rank=2, launch="second") as member:
        assert member.progress == 0
        member.progress = 6
    with join(box, rank=2, launch="second") as member:
        assert member.progress == 6


def test_without_a_launch_nothing_is_taken_over_from_who_left(box, join):
    with join(box) as member:
        member.progress = 5
    with join(box) as member:
        assert (member.rank, member.progress) == (0, 0)


@pytest.mark.parametrize("is_answered", [True, False])
def test_progress_may_go_back(box, join, die, monkeypatch, is_answered):
    """If the node answers the assignment but not the record, a renewal writes the record."""

    def fail(*_, **__):
        raise RequestTimeoutError("no answer")

    with join(box) as one, join(box) as other:
        one.progress = 9
        if not is_answered:
            die(one)
            monkeypatch.setattr(Roster, "write", fail)
        one.progress = 4
        if not is_answered:
            monkeypatch.undo()
            one.beat()
        found = other.members()[0]
        assert (found.progress, found.pid, other.count) == (4, os.getpid(), 2)


def test_a_given_rank_is_refused_while_its_holder_lives(box, join):
    with join(box, rank=3) as member:
        assert member.rank == 3
        with pytest.raises(RankTakenError, match="this process, close its first") as caught:
            join(box, rank=3)
        assert caught.value.facts["pid"] == os.getpid()
        assert caught.value.facts["host"] == socket.gethostname()
        assert member.count == 1
    with join(box, rank=3) as member:
        assert member.rank == 3


def test_a_given_rank_is_taken_when_its_holder_does_not_renew(box, join, die):
    first = join(box, rank=0)
    first.progress = 12
    die(first)
    with join(box, rank=0) as second:
        assert second.progress == 12
        with pytest.raises(LeaseLostError):
            first.progress = 13


def test_workers_are_the_living_and_those_who_never_came(box, until, join):
    first = join(box, expected=3)
    assert (first.count, first.workers) == (1, 3)
    assert [(each.rank, each.host, each.pid) for each in first.missing()] == [
        (1, None, None),
        (2, None, None),
    ]
    second = join(box, expected=3)
    assert second.workers == 3
    second.leave()
    until(lambda: first.workers == 2)
    extra = [join(box) for _ in range(3)]
    assert [member.rank for member in extra] == [1, 2, 3]
    until(lambda: first.workers == 4)


def test_late_is_who_joins_a_run_at_work(box, join):
    first, second = join(box), join(box)
    assert (first.late, second.late) == (False, False)
    first.progress = 1
    assert join(box).late


def test_a_closed_box_leaves(solo, box, join):
    from smbox.testing.solo import solo_box

    other_box = solo_box(solo)
    one, other = join(box), join(other_box)
    assert one.count == 2
    other_box.close()
    assert one.count == 1
    assert one.missing() == []
    with pytest.raises(LeaseLostError):
        other.check()


def test_the_box_forgets_what_has_left(box, until):
    holders = [smbox.join(box, "run", lease_s=WAIT_S), box.lock("door", lease_s=WAIT_S)]
    holders[1].acquire()
    for holder in holders:
        holder.leave()
    left = [weakref.ref(holder) for holder in holders]
    del holder, holders
    until(lambda: gc.collect() >= 0 and not any(each() for each in left))


def test_a_forked_child_is_no_member(box, join):
    member = join(box)
    if (child := os.fork()) == 0:
        try:
            member.leave()
            member.members()
        except LeaseLostError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert member.count == 1
    member.check()


@pytest.mark.parametrize("box", [None, "x", object()])
def test_a_run_needs_a_box(box):
    with pytest.raises(TypeError, match=f"box must be a Box, not {type(box).__name__}"):
        smbox.join(box, "run")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rank": -1}, ConfigError),
        ({"rank": 1024}, ConfigError),
        ({"lease_s": 0.0}, ConfigError),
        ({"expected": -1}, ConfigError),
        ({"rank": 1.5}, TypeError),
        ({"expected": "2"}, TypeError),
        ({"launch": 3}, TypeError),
        ({"restart": -1}, ConfigError),
        ({"restart": 1 << 31}, ConfigError),
    ],
)
def test_impossible_settings_are_refused(box, settings, error, join):
    with pytest.raises(error):
        join(box, **settings)
    with join(box) as member:
        assert (member.rank, member.count) == (0, 1)


def test_a_heartbeat_that_finds_the_place_left_does_not_warn(join, box, monkeypatch, caplog):
    """Another thread leaves while the heartbeat thread begins a renewal."""
    renew = Lease.renew
    member = join(box)

    def leave_first(lease, *, deadline_s=None):
        member.leave()
        renew(lease, deadline_s=deadline_s)

    monkeypatch.setattr(Lease, "renew", leave_first)
    member.beat()
    assert not member.is_held
    assert "cannot renew a lease" not in caplog.text
