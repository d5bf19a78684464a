"""Threads that renew: what goes wrong with one lease hinders no other."""

from __future__ import annotations

import threading

import pytest

from smbox import heartbeat

WAIT_S = 30.0


class Memory:
    """What leases lie in."""


class Beating:
    """A lease that counts its renewals, and may fail at them or wait in them."""

    interval_s = 0.01

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


def test_an_error_in_one_renewal_ends_no_other(keep):
    memory = Memory()

    def fail():
        raise ZeroDivisionError

    failing, other = keep(Beating(memory, fail)), keep(Beating(memory))
    assert is_renewed(failing)
    assert is_renewed(other)
