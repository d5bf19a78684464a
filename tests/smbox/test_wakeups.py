"""Waits for a change of a place: none ends without one, and none misses one."""

from __future__ import annotations

import time

import numpy as np
import pytest

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
    first, second = (box.lock("door", lease_s=LEASE_S, timeout_s=LEASE_S) for _ in range(2))
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
