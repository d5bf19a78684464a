"""Locks within one process; tests/integration/test_locks.py kills and stops real holders."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time

import pytest

from smbox import heartbeat
from smbox.errors import ConfigError, LeaseLostError, RequestTimeoutError
from smbox.lease import Lease, expire, leases_s
from smbox.roster import LEASE_MS, Roster

LEASE_S = 0.6
WAIT_S = 60.0


def lock_of(box, **settings):
    return box.lock("door", **({"lease_s": LEASE_S, "timeout_s": WAIT_S} | settings))


def die(lock):
    """Stop renewing a lock's lease, as if its holder were killed or stopped."""
    heartbeat.drop(lock)


def test_one_holder_at_a_time(box):
    region, begin = box.create("pair", shape=2, dtype="int64"), threading.Barrier(4)

    def work():
        begin.wait(WAIT_S)
        for _ in range(25):
            with lock_of(box):
                old = region.get()  # only the lock makes this read and write atomic
                assert old[0] == old[1]
                region[:1].put(old[:1] + 1)
                region[1:].put(old[1:] + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert region.get().tolist() == [100, 100]


def test_of_threads_that_share_a_lock_one_holds_it(box):
    first, shared, taken = lock_of(box), lock_of(box), []

    def work():
        with contextlib.suppress(RequestTimeoutError):
            taken.append(shared.acquire(timeout_s=2.0))

    threads = [threading.Thread(target=work) for _ in range(3)]
    with first:
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # all of them wait
    for thread in threads:
        thread.join(WAIT_S)
    assert taken == [shared.fence]
    with pytest.raises(RequestTimeoutError):
        first.acquire(timeout_s=0.0)
    shared.release()


def test_each_holder_has_a_larger_fence(box):
    fences = []
    for _ in range(5):
        with lock_of(box) as lock:
            fences.append(lock.fence)
            assert lock.is_held
        assert not lock.is_held
    assert fences == sorted(set(fences))
    with pytest.raises(LeaseLostError, match="released the lock"):
        lock.check()


def test_a_waiter_learns_who_holds_the_lock_and_takes_nothing(box):
    first, second = lock_of(box), lock_of(box, timeout_s=0.2)
    first.acquire()
    with pytest.raises(RequestTimeoutError, match="another Lock object holds") as raised:
        second.acquire()
    facts = raised.value.facts
    assert (facts["host"], facts["pid"]) == (socket.gethostname(), os.getpid())
    assert (facts["lock"], facts["timeout_s"], facts["outcome"]) == ("door", 0.2, "none")
    assert facts["since"].startswith("20")
    assert not second.is_held
    assert first.is_held
    assert first.holder().pid == os.getpid()
    first.release()
    assert first.holder() is None
    with pytest.raises(LeaseLostError):
        first.release()
    second.acquire(timeout_s=WAIT_S)
    second.release()


def test_a_lock_is_kept_for_longer_than_its_lease(box):
    with lock_of(box) as lock:
        fence = lock.fence
        time.sleep(3 * LEASE_S)
        with pytest.raises(RequestTimeoutError):
            lock_of(box).acquire(timeout_s=0.0)
        assert lock.fence == fence


def test_a_holder_that_comes_late_learns_that_it_lost_the_lock(box):
    late, next_one = lock_of(box), lock_of(box)
    fence = late.acquire()
    die(late)
    assert next_one.acquire(timeout_s=WAIT_S) > fence
    with pytest.raises(LeaseLostError):
        late.check()
    with pytest.raises(LeaseLostError):
        _ = late.fence
    with pytest.raises(LeaseLostError):
        late.release()
    assert next_one.is_held
    next_one.check()
    with pytest.raises(LeaseLostError, match="has not acquired the lock"):
        lock_of(box).release()
    next_one.release()


def lose_within(box, error=None):
    """Lose the lock to another holder inside a ``with`` block, and then raise an error."""
    with lock_of(box) as lock:
        die(lock)
        with lock_of(box):
            pass
        if error is not None:
            raise error


def test_a_block_whose_lock_was_lost_says_so_at_its_end(box):
    with pytest.raises(LeaseLostError):
        lose_within(box)


def test_an_error_in_the_block_counts_more_than_a_lost_lock(box):
    with pytest.raises(ZeroDivisionError):
        lose_within(box, ZeroDivisionError())


def test_an_error_in_the_block_releases_the_lock(box):
    with pytest.raises(ZeroDivisionError), lock_of(box):
        raise ZeroDivisionError
    with lock_of(box, timeout_s=0.0):
        pass


def test_a_lock_is_not_reentrant(box):
    with lock_of(box) as lock, pytest.raises(ConfigError, match="reentrant"):
        lock.acquire()


def test_a_lock_that_was_not_acquired_cannot_be_released(box):
    lock = lock_of(box)
    with pytest.raises(LeaseLostError):
        lock.release()
    with pytest.raises(LeaseLostError):
        lock.check()
    assert lock.holder() is None


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_is_a_positive_time(box, lease_s):
    with pytest.raises(ConfigError):
        box.lock("door", lease_s=lease_s)
    assert box.regions() == []


def test_every_hold_has_the_lease_of_the_lock(box):
    with lock_of(box, lease_s=600.0):
        assert leases_s(places_of(box).get()[0, LEASE_MS]) == 600.0


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), "5", None])
def test_a_timeout_is_a_time(box, timeout_s):
    with pytest.raises(ConfigError):
        box.lock("door", timeout_s=timeout_s)


def places_of(box):
    return box.attach("door.lock.members")


def test_a_lock_found_expired_is_kept_for_its_own_lease(box):
    """A waiter measures the holder's next generation by the holder's lease, not by its own."""
    holder = lock_of(box, lease_s=2.0)
    fence = holder.acquire()
    expire(places_of(box), int(places_of(box).get()[0, 0]))
    deadline_s = time.monotonic() + WAIT_S
    while holder.fence == fence:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(RequestTimeoutError) as raised:
        lock_of(box, lease_s=0.1).acquire(timeout_s=2.0)
    assert raised.value.facts["pid"] == os.getpid()
    holder.release()


def test_a_holder_whose_record_is_not_there_yet_is_kept_for_its_own_lease(box):
    waiter = lock_of(box, lease_s=0.1)
    assert Lease(places_of(box), 600.0).take(0, [0, 0])
    with pytest.raises(RequestTimeoutError):
        waiter.acquire(timeout_s=1.0)


@pytest.mark.parametrize("timeout_s", [math.nan, "5"])
def test_a_wait_that_would_never_be_over_is_refused(box, timeout_s):
    with lock_of(box), pytest.raises(ConfigError, match="number of seconds"):
        lock_of(box).acquire(timeout_s=timeout_s)


def test_a_release_right_before_the_wait_ends_it(box, monkeypatch):
    """The version that the wait is for is read before the holder is."""
    holder, waiter, over = lock_of(box, lease_s=WAIT_S), lock_of(box), []
    holder.acquire()
    watch = Roster.watch

    def watch_and_release(*arguments, **settings):
        view = watch(*arguments, **settings)
        monkeypatch.undo()
        holder.release()
        monkeypatch.setattr(Roster, "wait", note)
        return view

    def note(roster, version, _timeout_s):
        over.append(roster.version() - version)  # the wait is for a difference of 1

    monkeypatch.setattr(Roster, "watch", watch_and_release)
    waiter.acquire()
    waiter.release()
    assert over == [1]
