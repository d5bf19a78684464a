"""Calls of a lease: their deadlines, and calls that wait while another thread leaves."""

from __future__ import annotations

import time

import pytest

from smbox.deadline import ANSWER_MIN_S, request_timeout_s
from smbox.errors import LeaseLostError, RequestTimeoutError
from smbox.lease import LEFT, Lease, expire, generations, numbers
from smbox.member_record import Record
from smbox.region import Region
from smbox.watch import Watch

LEASE_S = 60.0


@pytest.fixture
def row(box):
    return box.create("places", shape=(1, 4), dtype="int64", init=0)


class Timed:
    """A place that notes the timeouts of its requests."""

    def __init__(self, row):
        self._row, self.shape, self.name, self.timeouts_s = row, row.shape, row.name, []

    def fetch_and_op(self, *arguments, timeout_s):
        self.timeouts_s.append(timeout_s)
        return self._row.fetch_and_op(*arguments, timeout_s=timeout_s)


def test_each_request_ends_soon_after_the_deadline_of_its_call(row):
    place = Timed(row)
    lease = Lease(place, lease_s=1e-9)  # so ``check`` renews it
    end = {"deadline_s": time.monotonic()}
    lease.take(0, (5, 0), **end)
    lease.set(0, 9, **end)
    lease.set(0, 1, **end)
    lease.renew(**end)
    lease.check(**end)
    lease.leave(**end)
    expire(place, 0, **end)
    assert len(place.timeouts_s) == 7
    assert None not in place.timeouts_s
    assert max(place.timeouts_s) <= ANSWER_MIN_S


def test_a_check_right_after_a_take_sends_no_request(row):
    lease = Lease(place := Timed(row), LEASE_S)
    assert lease.take(0, (0, 0))
    lease.check()
    assert len(place.timeouts_s) == 1


def test_no_request_of_acquire_meet_or_heartbeat_is_without_a_deadline(box, join, monkeypatch):
    lock, member = box.lock("door"), join(box, lease_s=LEASE_S)
    expired, timeouts_s = join(box, lease_s=LEASE_S), []

    def note(name):
        verb = getattr(Region, name)

        def noted(region, *arguments, timeout_s=None, **settings):
            timeouts_s.append(timeout_s)
            return verb(region, *arguments, timeout_s=timeout_s, **settings)

        monkeypatch.setattr(Region, name, noted)

    for name in ("get", "put", "fetch_and_op", "wait"):
        note(name)
    monkeypatch.setattr(Watch, "observe", lambda _, words, *__, **___: words != 0)
    lock.acquire(timeout_s=LEASE_S)
    member.meet(timeout_s=LEASE_S)
    for holder in (lock, member):
        holder.beat()
    assert member.seen.expired() == [expired.rank]
    assert len(timeouts_s) >= 8
    assert None not in timeouts_s


def test_the_last_look_of_an_acquire_does_not_wait_for_the_node(box, monkeypatch):
    with box.lock("door", lease_s=LEASE_S):
        waiter = box.lock("door")
        monkeypatch.setattr(box, "attach", pytest.fail)
        with pytest.raises(RequestTimeoutError, match="holds the lock"):
            waiter.acquire(timeout_s=0.0)


@pytest.mark.parametrize(("timeout_s", "most_s"), [(LEASE_S, 1.0), (-ANSWER_MIN_S, 0.0)])
def test_an_acquire_that_is_interrupted_gives_the_lock_back_within_a_second(
    box, monkeypatch, timeout_s, most_s
):
    """It also ends at most a second after its timeout."""
    lock, leave, waits_s = box.lock("door"), Lease.leave, []

    def interrupted(**_):
        raise KeyboardInterrupt

    def noted(lease, *, deadline_s=None):
        waits_s.append(request_timeout_s(deadline_s))
        leave(lease, deadline_s=deadline_s)

    monkeypatch.setattr(Record, "own", interrupted)
    monkeypatch.setattr(Lease, "leave", noted)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(timeout_s=timeout_s)
    assert 0.0 <= most_s - waits_s[0] < 0.5
    assert lock.holder() is None


@pytest.mark.parametrize(
    "use", [Lease.renew, lambda lease: lease.set(0, 9), lambda lease: lease.set(0, 1)]
)
def test_a_call_that_waits_while_another_thread_leaves_changes_nothing(row, monkeypatch, use):
    """Each call looks before it waits for the mutex, and after that."""
    lease, looks = Lease(row, LEASE_S), []

    def look(lease):
        looks.append(lease)
        if len(looks) == 2:
            lease.leave()

    assert lease.take(0, (5, 0))
    monkeypatch.setattr(Lease, "check_process", look)
    with pytest.raises(LeaseLostError, match="left the run"):
        use(lease)
    words = row.get()[0]
    assert generations(words).tolist() == [1] * 4
    assert numbers(words)[:2].tolist() == [LEFT, 5]


class Unanswered(Timed):
    """A place whose requests are executed, but not answered."""

    def fetch_and_op(self, *arguments, **settings):
        super().fetch_and_op(*arguments, **settings)
        raise RequestTimeoutError("the node did not answer", outcome="unknown")


def test_a_renewal_keeps_what_a_request_without_an_answer_has_set(row):
    """An arrival at a meeting counts, although the call timed out."""
    lease = Lease(row, LEASE_S)
    assert lease.take(0, (0, 0))
    lease.row = Unanswered(row)
    with pytest.raises(RequestTimeoutError):
        lease.set(0, 9)
    lease.row = row
    lease.renew()
    words = row.get()[0]
    assert (numbers(words)[1], generations(words).tolist()) == (9, [1] * 4)
