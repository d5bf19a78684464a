"""Ctrl-C in ``smbox.join`` and ``Lock.acquire``: the process takes no rank and no lock."""

from __future__ import annotations

from functools import partial

import pytest

import smbox
from smbox import heartbeat, lock, membership
from smbox.deadline import left_s
from smbox.heartbeat import LEAVE_TIMEOUT_S
from smbox.lease import Lease
from smbox.member_record import Record
from smbox.testing.interrupts import interrupted

WAIT_S = 60.0


def test_who_is_interrupted_while_joining_takes_no_rank(box, join, monkeypatch):
    leave, waits_s = Lease.leave, []

    def interrupt(**_):
        raise KeyboardInterrupt

    def leave_soon(lease, *, deadline_s):
        waits_s.append(left_s(deadline_s))
        leave(lease, deadline_s=deadline_s)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "own", interrupt)
        patch.setattr(Lease, "leave", leave_soon)
        with pytest.raises(KeyboardInterrupt):
            join(box, lease_s=WAIT_S)
    assert [wait_s <= LEAVE_TIMEOUT_S for wait_s in waits_s] == [True]
    with join(box) as member:
        assert member.rank == 0


def test_who_is_interrupted_at_any_line_of_a_join_may_join_again(box, join):
    at, is_hit = 0, True
    while is_hit:
        at += 1
        name = f"run{at}"
        once = partial(smbox.join, box, name, lease_s=WAIT_S)
        is_hit = interrupted(at, once, (membership.__file__, heartbeat.__file__))
        if is_hit:
            with once() as member:
                assert member.rank == 0, at
    assert at > 30


def test_a_lock_is_free_after_an_interrupt_at_any_line_of_an_acquire(box):
    at, is_hit = 0, True
    while is_hit:
        at += 1
        one = box.lock(f"door{at}", lease_s=WAIT_S, timeout_s=0.0)
        is_hit = interrupted(at, one.acquire, (lock.__file__, heartbeat.__file__))
        if is_hit:
            for each in (one, box.lock(f"door{at}", lease_s=WAIT_S, timeout_s=0.0)):
                each.acquire()
                each.release()
    assert at > 30
    one.release()
