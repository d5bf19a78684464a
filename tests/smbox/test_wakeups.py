"""Waits for a change of a place: none ends without one, and none misses one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from smbox.errors import PeerLostError, RequestTimeoutError
from smbox.roster import Roster

LEASE_S = 600.0
SOON_S = 30.0


@pytest.fixture
def after_version(monkeypatch):
    """``after_version(job)``: a change by others just before a version is asked for."""
    version = Roster.version

    def install(job):
        def patched(roster, **settings):
            job()
            return version(roster, **settings)

        monkeypatch.setattr(Roster, "version", patched)

    return install


def test_a_wait_ends_at_the_first_change_and_not_before(box):
    roster, began_s = Roster(box, "run"), time.monotonic()
    version = roster.version()
    roster.wait(version, 0.05)
    assert time.monotonic() - began_s >= 0.05
    roster.place(7).put(np.ones((1, 4), np.int64))
    roster.wait(version, SOON_S)
    assert time.monotonic() - began_s < SOON_S


def test_a_lock_that_is_released_before_the_wait_is_taken_at_once(box, after_version):
    first = box.lock("door", lease_s=LEASE_S)
    second = box.lock("door", lease_s=LEASE_S, timeout_s=2 * SOON_S)
    first.acquire()
    began_s = time.monotonic()
    after_version(first.leave)
    second.acquire()
    assert time.monotonic() - began_s < SOON_S
    second.release()


def test_a_member_that_leaves_before_the_wait_is_not_waited_for(box, join, after_version):
    one, other = join(box, lease_s=LEASE_S), join(box, lease_s=LEASE_S)
    began_s = time.monotonic()
    after_version(other.leave)
    one.meet(timeout_s=2 * SOON_S)
    assert time.monotonic() - began_s < SOON_S


@pytest.fixture
def held(box):
    with box.lock("door", lease_s=LEASE_S):
        yield box.lock("door", timeout_s=SOON_S)


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_waiter_whose_time_is_over_does_not_ask_the_node(box, held, monkeypatch):
    """A waiter with mapped memory need not wait for a node that does not answer."""
    monkeypatch.setattr(box, "attach", failing(AssertionError()))
    with pytest.raises(RequestTimeoutError, match="holds the lock"):
        held.acquire(timeout_s=0.0)


def test_a_waiter_on_mapped_memory_is_told_that_the_node_has_another_one(
    box, held, monkeypatch
):
    """The memory that it maps may stay as it is for ever."""
    monkeypatch.setattr(box, "attach", failing(PeerLostError("another memory")))
    with pytest.raises(PeerLostError, match="another memory"):
        held.acquire()
