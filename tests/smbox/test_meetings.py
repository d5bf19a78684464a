"""Meetings and ends of members within one process."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from smbox.errors import LeaseLostError, RequestTimeoutError
from smbox.lease import Lease, expire, numbers
from smbox.meeting import is_at_end
from smbox.roster import MEETINGS, Roster

LEASE_S = 0.6
WAIT_S = 60.0


def test_a_meeting_waits_for_all_who_live(box, until, join):
    one, other = join(box), join(box)
    held = []

    def go():
        one.meet(timeout_s=WAIT_S)
        held.append("one")

    thread = threading.Thread(target=go)
    thread.start()
    until(lambda: other.seen.words[0, 2] & 1 or other.read() is None)
    assert held == []
    other.meet(timeout_s=WAIT_S)
    thread.join(WAIT_S)
    assert held == ["one"]


def test_a_meeting_waits_neither_for_the_dead_nor_for_those_who_left(box, join, die):
    one, dead, left = join(box), join(box), join(box)
    die(dead)
    left.leave()
    one.meet(timeout_s=WAIT_S)
    assert one.count == 1


def test_a_meeting_names_who_does_not_come(box, join):
    one, other = join(box, expected=3), join(box, expected=3)
    with pytest.raises(RequestTimeoutError) as caught:
        one.meet(timeout_s=0.1)
    assert f"rank 1 (host {socket.gethostname()}, pid {os.getpid()})" in str(caught.value)
    assert "rank 2 (never came)" in str(caught.value)
    assert other.count == 2


def test_who_joins_between_meetings_takes_part_in_the_next(box, join):
    one = join(box)
    one.meet(timeout_s=WAIT_S)
    two = join(box)
    with pytest.raises(RequestTimeoutError):
        one.meet(timeout_s=0.1)
    thread = threading.Thread(target=one.meet, kwargs={"timeout_s": WAIT_S})
    thread.start()
    two.meet(timeout_s=WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def finishing(until):
    """``finishing(member)``: start a thread that calls ``finish``; return once it waits."""
    threads = []

    def begin(member, timeout_s=WAIT_S):
        thread = threading.Thread(target=member.finish, kwargs={"timeout_s": timeout_s})
        thread.start()
        threads.append(thread)
        until(lambda: is_at_end(numbers(member.read().words[:, MEETINGS]))[member.rank])
        return thread

    yield begin
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_meetings_go_on_without_who_waits_at_the_end_and_the_end_waits_for_them(
    box, finishing, join
):
    one, two, three = join(box), join(box), join(box)
    first = finishing(one)
    for _ in range(2):
        with pytest.raises(RequestTimeoutError, match=r"meeting: rank 2 \(host"):
            two.meet(timeout_s=0.1)  # it waits for rank 2
        three.meet(timeout_s=WAIT_S)
        two.meet(timeout_s=WAIT_S)
    assert first.is_alive()
    finishing(two)
    assert first.is_alive()
    three.finish(timeout_s=WAIT_S)
    first.join(WAIT_S)
    assert not first.is_alive()


def test_after_an_end_all_are_at_the_same_meeting(box, finishing, until, join):
    one, two = join(box), join(box)
    finishing(one)
    for _ in range(3):
        two.meet(timeout_s=WAIT_S)
    two.finish(timeout_s=WAIT_S)
    until(lambda: not is_at_end(numbers(two.read().words[:, MEETINGS])).any())
    for first, second in ((one, two), (two, one)):
        with pytest.raises(RequestTimeoutError):
            first.meet(timeout_s=0.1)
        second.meet(timeout_s=WAIT_S)
        first.meet(timeout_s=WAIT_S)


def test_who_joins_while_others_wait_at_the_end_is_waited_for(box, finishing, join):
    one, two = join(box), join(box)
    first = finishing(one)
    late = join(box)
    two.leave()
    late.meet(timeout_s=WAIT_S)
    assert first.is_alive()
    late.finish(timeout_s=WAIT_S)


def test_an_end_that_was_given_up_can_be_come_to_again(box, join):
    one, two = join(box), join(box)
    with pytest.raises(RequestTimeoutError, match="rank 1"):
        one.finish(timeout_s=0.1)
    two.meet(timeout_s=WAIT_S)  # without rank 0
    two.leave()
    one.finish(timeout_s=WAIT_S)


def test_an_end_waits_without_limit_for_the_living_and_names_them(
    box, monkeypatch, caplog, until, join
):
    monkeypatch.setattr("smbox.meeting.MEET_TIMEOUT_S", 0.2)
    monkeypatch.setattr("smbox.meeting.WARNING_INTERVAL_S", 0.3)
    one, slow = join(box, expected=3), join(box, expected=3, lease_s=WAIT_S)
    ended = []

    def end():
        with pytest.raises(RequestTimeoutError, match=r"meeting: rank 2 \(never came\)"):
            one.finish()
        ended.append("one")

    thread = threading.Thread(target=end)
    thread.start()
    named = f"waits for rank 1 (host {socket.gethostname()}, pid {os.getpid()}), rank 2"
    until(lambda: named in caplog.text)  # after MEET_TIMEOUT_S
    assert ended == []
    slow.leave()
    thread.join(WAIT_S)
    assert ended == ["one"]


def test_who_joins_begins_where_the_living_are(box, join):
    left = join(box, rank=1)
    for _ in range(2):
        left.meet(timeout_s=WAIT_S)
    left.leave()
    assert (join(box).met, join(box).met) == (0, 0)


def test_a_meeting_ends_for_who_loses_its_rank_in_it(box, join, die, monkeypatch):
    one, _other = join(box, lease_s=0.1), join(box)
    die(one)

    def lose(roster, *_):
        place = roster.place(0)
        if expire(place, int(place.get()[0, 0])):
            Lease(place, WAIT_S).take(1, (0, 0))
        time.sleep(0.1)

    monkeypatch.setattr(Roster, "wait", lose)
    with pytest.raises(LeaseLostError, match="took its place"):
        one.meet(timeout_s=3.0)
