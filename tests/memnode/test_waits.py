from __future__ import annotations

import pytest

from memnode.waits import WAITS_MAX, Waits
from smbox.errors import LimitError, RegionFreedError
from smbox.wire.codec import Request
from smbox.wire.ops import Op
from smbox.wire.status import Status


def add(waits, request=1, *, connection="c", address=4096, version=5, deadline_s=10.0):
    asked = Request(Op.WAIT, request, address=address, version=version, nbytes=500)
    waits.add(connection, asked, deadline_s=deadline_s)


@pytest.fixture
def waits():
    return Waits()


def test_a_wait_ends_when_its_version_is_reached(waits):
    add(waits, version=5)
    assert waits.poll(lambda _: 4, now_s=0.0) == []
    [(connection, reply)] = waits.poll(lambda _: 6, now_s=0.0)
    assert connection == "c"
    assert (reply.status, reply.request, reply.version) == (Status.OK, 1, 6)
    assert len(waits) == 0


def test_a_wait_ends_at_its_deadline(waits):
    add(waits, deadline_s=10.0)
    assert waits.poll(lambda _: 0, now_s=9.9) == []
    [(_, reply)] = waits.poll(lambda _: 3, now_s=10.0)
    assert reply.status is Status.TIMEOUT
    assert reply.error.facts == {"timeout_s": 0.5, "version": 3}


def test_a_reached_version_wins_over_a_passed_deadline(waits):
    add(waits, deadline_s=1.0)
    [(_, reply)] = waits.poll(lambda _: 5, now_s=2.0)
    assert reply.status is Status.OK


def test_a_freed_region_ends_its_waits_with_the_error(waits):
    def freed(address):
        raise RegionFreedError("freed")

    add(waits, 1)
    add(waits, 2)
    replies = [reply for _, reply in waits.poll(freed, now_s=0.0)]
    assert [reply.request for reply in replies] == [1, 2]
    assert {reply.status for reply in replies} == {Status.REGION_FREED}


def test_a_region_is_looked_at_once_however_many_wait(waits):
    asked = []
    for request in range(3):
        add(waits, request)
        add(waits, request, connection="another")
    waits.poll(lambda address: asked.append(address) or 0, now_s=0.0)
    assert asked == [4096]


def test_the_waits_of_a_lost_connection_are_dropped(waits):
    add(waits, 1, connection="a")
    add(waits, 2, connection="b")
    waits.drop("a")
    waits.drop("nobody")
    assert [connection for connection, _ in waits.poll(lambda _: 9, now_s=0.0)] == ["b"]


def test_a_repeated_wait_counts_once(waits):
    add(waits, 1, version=5)
    add(waits, 1, version=7)
    assert len(waits) == 1
    assert waits.poll(lambda _: 6, now_s=0.0) == []


def test_one_connection_cannot_wait_without_end(waits):
    for request in range(WAITS_MAX):
        add(waits, request)
    with pytest.raises(LimitError):
        add(waits, WAITS_MAX)
    add(waits, 0)  # it replaces itself
    add(waits, 0, connection="another")
    waits.poll(lambda _: 9, now_s=0.0)
    add(waits, WAITS_MAX)
