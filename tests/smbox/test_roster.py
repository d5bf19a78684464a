"""The roster: which holders an observer counts as dead, and when."""

from __future__ import annotations

import os
import threading
import time

import pytest
from msgspec.structs import replace

from smbox import roster
from smbox.errors import RequestTimeoutError
from smbox.lease import Lease, expire
from smbox.member_record import Record
from smbox.region import Region
from smbox.roster import Roster

WAIT_S = 60.0


def test_late_is_who_joins_once_a_process_here_was_killed(box, join, die):
    killed, observer = join(box, lease_s=WAIT_S), Roster(box, "run")
    die(killed)
    record = observer.seen.records[0]
    observer.write(0, replace(record, pid_started=record.pid_started + 1))
    successor = join(box)
    assert (successor.rank, successor.late) == (0, True)


def test_late_is_who_joins_once_a_member_has_expired(box, join, die):
    die(join(box, lease_s=WAIT_S))
    place = Roster(box, "run").place(0)
    assert expire(place, int(place.get()[0, 0]))
    assert join(box).late


def test_who_leaves_before_it_ends_does_not_count_as_dead(box, join, monkeypatch):
    left, observer = join(box), Roster(box, "run")

    def leave_and_end(_record):
        left.leave()
        return True

    monkeypatch.setattr(Record, "is_known_dead", leave_and_end)
    view = observer.read()
    assert (view.dead_here, view.expired(), view.count) == (set(), [], 0)


def test_a_member_that_seems_expired_still_counts_as_a_worker(box, join):
    member = join(box, lease_s=WAIT_S)
    place = Roster(box, "run").place(0)
    assert expire(place, int(place.get()[0, 0]))
    assert (member.count, member.workers) == (0, 1)


def test_a_member_does_not_expire_itself(box, join, die):
    member = join(box, lease_s=0.1)
    die(member)
    for _ in range(8):
        time.sleep(0.03)
        assert member.count == 1


def silent(*_, **__):
    raise RequestTimeoutError("the node did not answer")


def test_nobody_expires_by_looks_between_which_one_failed(box, join, die, monkeypatch):
    """The holder may have been as unable to renew as the observer was to read."""
    die(join(box, lease_s=0.1))
    observer = Roster(box, "run")
    for _ in range(8):
        time.sleep(0.03)
        with monkeypatch.context() as patch:
            patch.setattr(Region, "get", silent)
            with pytest.raises(RequestTimeoutError):
                observer.read()
        assert observer.read().alive() == [0]


def test_nobody_expires_while_the_node_does_not_answer(box, join, die, monkeypatch):
    """Mapped memory is read then, but members on other hosts cannot renew their leases."""
    die(join(box, lease_s=0.1))
    observer = Roster(box, "run")
    monkeypatch.setattr(box, "attach", silent)
    for _ in range(8):
        time.sleep(0.03)
        with pytest.raises(RequestTimeoutError):
            observer.ask_node(0.01)
        assert observer.read().alive() == [0]


def test_who_asks_the_node_does_not_wait_for_a_read_of_another_thread(box, monkeypatch):
    observer, failed = Roster(box, "run"), []

    def ask():
        with pytest.raises(RequestTimeoutError, match="did not answer"):
            observer.ask_node(0.01)
        failed.append(True)

    def get(*_, **__):
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(WAIT_S)
        assert failed
        silent()

    monkeypatch.setattr(box, "attach", silent)
    monkeypatch.setattr(Region, "get", get)
    with pytest.raises(RequestTimeoutError):
        observer.read()


def test_a_join_ends_when_the_node_does_not_answer(box, join, die, monkeypatch):
    """A read of mapped memory does not show it, and the holder may be on another host."""
    die(join(box, lease_s=0.1))
    monkeypatch.setattr(box, "attach", silent)
    with pytest.raises(RequestTimeoutError, match="did not answer"):
        join(box, rank=0)


def test_who_waits_for_a_rank_takes_it_once_its_holder_leaves(box, join, die, monkeypatch):
    holder = join(box, rank=0)
    die(holder)
    ask = Roster.ask_node

    def leave(*arguments):
        monkeypatch.setattr(Roster, "ask_node", ask)
        holder.leave()

    monkeypatch.setattr(Roster, "ask_node", leave)
    with join(box, rank=0) as member:
        assert member.rank == 0


def test_a_renewal_in_the_last_moment_keeps_a_rank(box, join, die, monkeypatch):
    """The holder renews between an observer's read and its mark."""
    marks, member = [], join(box, lease_s=0.1)
    die(member)
    monkeypatch.setattr(roster, "expire", lambda *_, **__: marks.append(1))
    observer = Roster(box, "run")
    for _ in range(8):
        time.sleep(0.03)
        assert observer.read().alive() == [0]
    assert marks


def test_a_holder_replaces_the_record_that_a_former_one_wrote_late(box, join):
    """It was stopped in its write for longer than its lease."""
    former = join(box)
    late = former.seen.records[0]
    former.leave()
    holder = join(box, lease_s=WAIT_S)
    records = box.attach("run.members.records")
    for wrong in (late.row(), 0 * late.row()):
        records[:1].put(wrong[None])
        assert Roster(box, "run").seen.of(0).pid is None
        holder.beat()
        assert Roster(box, "run").seen.of(0).pid == os.getpid()
    version = records.wait(0)
    holder.beat()
    assert records.wait(0) == version


def test_a_record_says_nothing_about_the_next_holder(box, join, die):
    """Between the take and the record of a successor, that of a dead process is still there."""
    killed, observer = join(box, lease_s=WAIT_S), Roster(box, "run")
    die(killed)
    record = observer.seen.records[0]
    observer.write(0, replace(record, pid_started=record.pid_started + 1))
    observer = Roster(box, "run")
    assert observer.seen.is_free(0)
    assert Lease(observer.place(0), WAIT_S).take(1, (0, 0))
    for view in (observer.read(), Roster(box, "run").seen):
        assert (view.is_free(0), view.of(0).alive, view.of(0).pid) == (False, True, None)


def test_a_read_without_looking_at_processes_keeps_the_deaths_that_are_known(
    box, join, monkeypatch
):
    """It sees no new ones; a later holder of the rank is alive."""
    member, observer = join(box, lease_s=WAIT_S), Roster(box, "run")
    monkeypatch.setattr(Record, "is_known_dead", lambda _: True)
    for reader in (observer, member):
        assert reader.read(deaths=False).dead_here == set()
        assert reader.read().dead_here == {0}
    assert observer.read(deaths=False).dead_here == {0}
    assert join(box, lease_s=WAIT_S).rank == 0
    assert observer.read(deaths=False).dead_here == set()


def test_a_wait_ends_with_a_change_or_its_timeout(box, join):
    member, observer = join(box, lease_s=WAIT_S), Roster(box, "run")
    version, began_s = observer.version(), time.monotonic()
    observer.wait(version, 0.05)
    assert time.monotonic() - began_s >= 0.05
    member.progress = 1
    observer.wait(version, WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 2
