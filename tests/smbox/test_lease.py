"""Leases on real regions."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import numpy as np
import pytest

from smbox.errors import ConfigError, LeaseLostError
from smbox.lease import (
    EXPIRED,
    LEFT,
    NUMBER_MAX,
    Lease,
    expire,
    generations,
    is_held,
    leases_s,
    numbers,
)

LEASE_S = 60.0


@pytest.fixture
def row(box):
    return box.create("places", shape=(1, 4), dtype="int64", init=0)


def taken(row, generation=0, values=(0, 0)):
    lease = Lease(row, LEASE_S)
    assert lease.take(generation, values)
    return lease


def words(row):
    return row.get()[0]


def test_of_many_that_take_a_place_at_once_one_gets_it(row):
    begin, won = threading.Barrier(8), []

    def compete():
        lease = Lease(row, LEASE_S)
        begin.wait(30)
        won.append(lease.take(0, [0, 0]))

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert generations(words(row)).tolist() == [1, 1, 1, 1]


def test_a_holder_that_was_replaced_changes_nothing_and_is_told(row):
    old = taken(row)
    old.set(0, 77)
    new = taken(row, generation=1, values=(5, 6))
    before = words(row)
    for use in (old.renew, lambda: old.set(0, NUMBER_MAX), old.check):
        with pytest.raises(LeaseLostError, match="took its place"):
            use()
    old.leave()
    np.testing.assert_array_equal(words(row), before)
    assert (new.generation, new.values, old.is_held) == (2, (5, 6), False)


def test_a_holder_found_expired_goes_on_if_its_place_is_free(row):
    lease = taken(row, values=(1, 2))
    expire(row, int(words(row)[0]))
    assert not is_held(words(row)[:1])[0]
    lease.renew()
    assert is_held(words(row)[:1])[0]
    assert (lease.generation, lease.values) == (2, (1, 2))
    assert numbers(words(row))[1:3].tolist() == [1, 2]


def test_a_mark_that_comes_late_does_not_expire_a_successor(row):
    taken(row)
    stood_still = int(words(row)[0])
    taken(row, generation=1)
    expire(row, stood_still)
    assert is_held(words(row)[:1])[0]


def test_a_mark_that_comes_after_a_renewal_expires_nobody(row):
    lease = taken(row)
    stood_still = int(words(row)[0])
    lease.renew()
    assert not expire(row, stood_still)
    assert is_held(words(row)[:1])[0]
    stood_still = int(words(row)[0])
    for _ in range(2):  # two observers
        assert expire(row, stood_still)
    assert not is_held(words(row)[:1])[0]


class Meddled:
    """A place that calls ``meddle`` before the next change returns."""

    def __init__(self, row):
        self._row, self.shape, self.name = row, row.shape, row.name
        self.meddle = lambda: None

    def fetch_and_op(self, *arguments, **settings):
        old = self._row.fetch_and_op(*arguments, **settings)
        meddle, self.meddle = self.meddle, lambda: None
        meddle()
        return old


class Left(Meddled):
    """A place that another thread leaves before the next change."""

    def __init__(self, row, lease):
        super().__init__(row)
        self._lease = lease

    def fetch_and_op(self, *arguments, **settings):
        self._lease.row = self._row
        self._lease.leave()
        return super().fetch_and_op(*arguments, **settings)


def test_a_place_left_during_a_renewal_is_not_taken_again(row):
    meddled = Meddled(row)
    lease = taken(meddled)
    expire(row, int(words(row)[0]))
    meddled.meddle = lease.leave
    with pytest.raises(LeaseLostError, match="left"):
        lease.renew()
    assert not is_held(words(row)[:1])[0]


def test_a_place_left_before_a_renewal_of_another_thread_is_not_taken_again(row):
    lease = taken(row)
    lease.row = Left(row, lease)
    with pytest.raises(LeaseLostError, match="left"):
        lease.renew()
    assert generations(words(row)).tolist() == [1] * 4


def test_an_expired_place_that_another_takes_during_a_renewal_is_lost(row):
    """Else both would hold it until the next renewal."""
    lease = taken(Meddled(row))
    expire(row, int(words(row)[0]))
    lease.row.meddle = lambda: taken(row, generation=1)
    with pytest.raises(LeaseLostError, match="another process"):
        lease.renew()
    assert not lease.is_held


def test_an_expired_place_left_while_it_is_taken_again_is_free(row):
    lease = taken(row)
    expire(row, int(words(row)[0]))
    lease.row = Meddled(row)
    lease.row.meddle = lambda: setattr(lease, "row", Left(row, lease))
    with pytest.raises(LeaseLostError, match="left"):
        lease.renew()
    assert not is_held(words(row)[:1])[0]


def test_a_holder_asks_the_node_after_its_host_was_suspended(row, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: now_s)
    lease = taken(row)
    now_s = 0.7 * LEASE_S
    lease.renew()
    taken(row, generation=1)
    now_s = 1.4 * LEASE_S
    lease.check()  # renewed in time: no request
    now_s = 2 * LEASE_S
    with pytest.raises(LeaseLostError, match="took its place"):
        lease.check()


class LateRow:
    """A row whose changes are answered later than a lease lasts."""

    def __init__(self, row):
        self._row, self.now_s = row, 0.0

    def fetch_and_op(self, *arguments, **options):
        self.now_s += 2 * LEASE_S
        return self._row.fetch_and_op(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._row, name)


def test_a_lease_lasts_from_before_its_request(row, monkeypatch):
    """Observers may see the change, and measure from it, long before the holder is told."""
    late = LateRow(row)
    monkeypatch.setattr(time, "clock_gettime", lambda _: late.now_s)
    lease, seen = taken(late), []
    for _ in range(3):
        seen.append(int(words(row)[0]))
        lease.check()
    assert len(set(seen)) == 3


def test_a_renewal_changes_the_word(row):
    lease = taken(row)
    before = words(row)[0]
    lease.renew()
    assert words(row)[0] > before


def test_a_value_may_become_smaller(row):
    lease = taken(row)
    lease.set(0, 9)
    lease.set(0, 4)
    assert numbers(words(row))[1:3].tolist() == [4, 0]
    assert lease.values == (4, 0)
    lease.renew()


def test_a_place_is_free_once_its_holder_left(row):
    lease = taken(row)
    lease.leave()
    assert numbers(words(row))[0] == LEFT
    assert not is_held(words(row)[:1])[0]
    with pytest.raises(LeaseLostError, match="left"):
        lease.renew()
    taken(row, generation=1)
    lease.leave()
    assert is_held(words(row)[:1])[0]


def test_impossible_values_and_leases_are_refused(row):
    lease = taken(row)
    for value in (-1, NUMBER_MAX + 1):
        with pytest.raises(ConfigError):
            lease.set(0, value)
    for lease_s in (0.0, -1.0, float("inf"), float("nan"), "5"):
        with pytest.raises(ConfigError, match="lease_s"):
            Lease(row, lease_s)
    assert lease.values == (0, 0)


def test_a_lease_that_no_word_can_hold_is_rounded_up_to_one(row):
    held = {1e-9: 0.001, 0.0101: 0.011, 1e300: NUMBER_MAX / 1000}
    for generation, (lease_s, held_s) in enumerate(held.items()):
        assert Lease(row, lease_s).take(generation, (0, 0))
        assert leases_s(words(row))[-1] == held_s
        assert generations(words(row)).tolist() == [generation + 1] * 4


def test_a_lost_lease_is_told_for_its_first_reason_and_without_waiting(row):
    """A thread that waits for the node, or a fork in the middle of it, may hold the mutex."""
    lease = taken(row)
    lease.lose("the first reason")
    lease.lose("a later one")
    with lease._mutex._lock:
        for use in (lease.renew, lambda **limit: lease.set(0, 1, **limit)):
            with pytest.raises(LeaseLostError, match="the first reason"):
                use(deadline_s=time.monotonic())


def test_a_forked_child_holds_nothing(row):
    lease = taken(row)
    before = words(row)
    if (child := os.fork()) == 0:
        try:
            lease.leave()
            lease.renew()
        except LeaseLostError as error:
            os._exit(0 if "parent" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(words(row), before)
    lease.renew()


def test_a_forked_child_waits_for_no_thread_of_its_parent(row, monkeypatch):
    """Its copy of a mutex that a thread held at the fork is never released."""
    lease, is_over = taken(row), threading.Event()
    thread = threading.Thread(target=lease._mutex.holding, args=(None, is_over.wait))
    thread.start()
    try:
        monkeypatch.setattr(os, "getpid", lambda: 0)
        deadline_s = time.monotonic() + 0.2
        for use in (lease.renew, partial(lease.set, 0, 1)):
            with pytest.raises(LeaseLostError, match="parent"):
                use(deadline_s=deadline_s)
    finally:
        monkeypatch.undo()
        is_over.set()
        thread.join()


def test_the_mark_of_who_left_is_above_every_count_of_renewals():
    assert LEFT == NUMBER_MAX
    assert LEFT & EXPIRED
