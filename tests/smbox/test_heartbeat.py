"""Heartbeat threads: a failure of one lease does not affect the others."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref

import pytest

from smbox import Box, heartbeat, mutex
from smbox.errors import (
    ConfigError,
    LeaseLostError,
    PeerLostError,
    RegionFreedError,
    RequestTimeoutError,
    SystemLimitError,
)
from smbox.region import Region
from smbox.testing.interrupts import interrupted_at_return

WAIT_S = 30.0


class Memory:
    """The memory of leases."""


class Beating:
    """A holder that counts its renewals; ``action`` may raise or wait."""

    interval_s = 0.01
    is_held = True

    def __init__(self, memory, action=None):
        self.memory, self._action = memory, action
        self.beats = threading.Semaphore(0)

    def beat(self):
        self.beats.release()
        if self._action is not None:
            self._action()

    def leave(self, *, timeout_s=None):
        pass


@pytest.fixture
def keep():
    kept = []

    def keep(beating):
        kept.append(beating)
        heartbeat.keep(beating)
        return beating

    yield keep
    for each in kept:
        heartbeat.drop(each)


def is_renewed(beating, times=3):
    return all(beating.beats.acquire(timeout=WAIT_S) for _ in range(times))


def test_a_memory_that_does_not_answer_delays_no_lease_in_another(keep):
    answered = threading.Event()
    try:
        waiting = keep(Beating(Memory(), lambda: answered.wait(WAIT_S)))
        assert waiting.beats.acquire(timeout=WAIT_S)
        assert is_renewed(keep(Beating(Memory())))
        assert not waiting.beats.acquire(blocking=False)
    finally:
        answered.set()


def test_a_lease_of_many_years_stops_no_other_renewal(keep):
    memory = Memory()
    endless = Beating(memory)
    endless.interval_s = 1e300
    keep(endless)
    assert not endless.beats.acquire(timeout=0.05)
    assert is_renewed(keep(Beating(memory)))


def test_an_error_in_one_renewal_ends_no_other(keep):
    memory = Memory()

    def fail():
        raise ZeroDivisionError

    failing, other = keep(Beating(memory, fail)), keep(Beating(memory))
    assert is_renewed(failing)
    assert is_renewed(other)


def drop_elsewhere(beating):
    """Drop it on another thread, as a finalizer does if that thread collects garbage."""
    dropping = threading.Thread(target=heartbeat.drop, args=(beating,), daemon=True)
    dropping.start()
    dropping.join(WAIT_S)
    assert not dropping.is_alive()


def test_the_thread_may_drop_what_nobody_uses_any_more_before_it_runs(keep, monkeypatch):
    memory = Memory()
    unused, begun = Beating(memory), []

    class Collecting(threading.Thread):
        def start(self):
            if self.name == "smbox-heartbeat":
                begun.append(self)
                drop_elsewhere(unused)
            super().start()

    monkeypatch.setattr(threading, "Thread", Collecting)
    for _ in range(2):
        assert is_renewed(keep(Beating(memory)))
    assert len(begun) == 1


def test_a_holder_may_be_dropped_while_another_one_is_kept(keep):
    unused, dropped = Beating(Memory()), threading.Event()

    class Collecting(Beating):
        @property
        def interval_s(self):
            heartbeat.drop(unused)  # by the same thread: an allocation may collect garbage
            dropped.set()
            return 0.01

    keeping = threading.Thread(target=keep, args=(Collecting(Memory()),), daemon=True)
    keeping.start()
    assert dropped.wait(WAIT_S)
    keeping.join(WAIT_S)
    assert not keeping.is_alive()


def test_an_interrupt_at_the_end_of_a_call_stops_no_renewal(keep):
    at, is_over = 0, False
    while not is_over:
        at += 1
        memory = Memory()
        renewed, other = keep(Beating(memory)), Beating(memory)

        def change(other=other):
            heartbeat.keep(other)
            heartbeat.drop(other)

        is_over = not interrupted_at_return(at, change)
        heartbeat.drop(other)
        while renewed.beats.acquire(blocking=False):
            pass
        assert is_renewed(renewed, times=1), at
        heartbeat.drop(renewed)
    assert at > 5


def test_what_is_lost_is_renewed_no_more_until_it_is_kept_again(keep):
    memory = Memory()
    lost, other = keep(Beating(memory)), keep(Beating(memory))
    assert is_renewed(lost)
    lost.is_held = False
    assert is_renewed(other, times=5)
    lost.beats = threading.Semaphore(0)
    assert is_renewed(other, times=5)
    assert not lost.beats.acquire(blocking=False)
    lost.is_held = True
    assert is_renewed(keep(lost))


def test_a_thread_that_cannot_be_started_is_started_for_the_next_holder(keep, monkeypatch):
    memory = Memory()
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(SystemLimitError):
            keep(Beating(memory))
    assert is_renewed(keep(Beating(memory)))


def test_a_lease_is_lost_once_the_box_of_its_copies_is_closed(box, paths):
    """Copies of a box that were unpickled in one process share its connection."""
    lock = box.lock("door", lease_s=WAIT_S)
    lock.acquire()
    Box(paths).close()
    lock.beat()
    assert not lock.is_held
    with pytest.raises(LeaseLostError, match="was closed"):
        lock.check()


def test_a_lease_is_lost_with_its_region(box):
    lock, waiter = box.lock("door", lease_s=WAIT_S), box.lock("door")
    lock.acquire()
    box.free("door.lock.members")
    lock.beat()
    with pytest.raises(LeaseLostError, match="no longer exists"):
        lock.check()
    with pytest.raises(RegionFreedError):
        waiter.acquire()


@pytest.mark.parametrize(("error", "is_held"), [(PeerLostError, 0), (RequestTimeoutError, 1)])
def test_a_holder_whose_node_does_not_answer_renews_and_leaves_later(
    box, monkeypatch, caplog, error, is_held
):
    def fail(*_, **__):
        raise error("no answer")

    lock = box.lock("door", lease_s=WAIT_S)
    lock.acquire()
    with monkeypatch.context() as during:
        during.setattr(Region, "fetch_and_op", fail)
        lock.beat()
        assert lock.is_held == is_held
        lock.leave()
    assert not caplog.records
    with pytest.raises(ConfigError):
        lock.leave(timeout_s=math.nan)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 0)
        with pytest.raises(LeaseLostError):
            lock.release()
    lock.leave()
    assert (lock.holder() is None) == is_held  # a lost one is not left


def test_a_renewal_waits_for_another_thread_only_until_the_next_is_due(box, monkeypatch):
    """All leases of a memory are renewed by one thread."""
    lock, waits_s = box.lock("door", lease_s=WAIT_S), []
    lock.acquire()
    heartbeat.drop(lock)
    lock.answer_s = 0.01

    def note(_, deadline_s, job, *, late):
        waits_s.append(deadline_s - time.monotonic())
        return job()

    monkeypatch.setattr(mutex, "holding", note)
    lock.beat()
    assert waits_s[0] <= lock.answer_s


def test_a_forked_child_renews_its_own_leases(keep):
    memory = Memory()
    assert is_renewed(keep(Beating(memory)))
    if (child := os.fork()) == 0:
        os._exit(7 if is_renewed(keep(Beating(memory))) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_nothing_keeps_a_lock_that_was_released(box, until):
    with (lock := box.lock("door", lease_s=100 * WAIT_S)):
        pass
    found = weakref.ref(lock)
    del lock
    until(lambda: found() is None)


def no_thread(_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("kind", ["lock", "member"])
def test_a_call_that_was_interrupted_while_it_freed_a_place_is_completed_by_another(
    box, join, interrupted, kind
):
    nth, is_over = 0, False
    while not is_over:
        nth += 1
        if kind == "lock":
            holder = box.lock("door", lease_s=WAIT_S, timeout_s=0.0)
            holder.acquire()
            free = holder.release
        else:
            holder = join(box, lease_s=WAIT_S)
            assert holder.rank == 0
            free = holder.leave
        is_over = not interrupted(nth, free)[1]
        if not is_over:
            free()
    assert nth > 10
    holder.leave()
