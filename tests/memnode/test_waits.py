from __future__ import annotations

import pytest

from memnode.waits import WAITS_MAX, Wait, Waits
from smbox.errors import LimitError, RegionFreedError
from smbox.wire.codec import Request
from smbox.wire.ops import Op


def wait(request=1, *, connection="c", address=4096, version=5, deadline_s=10.0):
    return Wait(connection, Request(Op.WAIT, request), address, version, deadline_s)


def test_a_wait_ends_when_its_version_is_reached():
    waits = Waits()
    waits.add(wait(version=5))
    assert waits.poll(lambda _: 4, now_s=0.0) == []
    [end] = waits.poll(lambda _: 6, now_s=0.0)
    assert end.is_reached
    assert end.version == 6
    assert len(waits) == 0


def test_a_wait_ends_at_its_deadline():
    waits = Waits()
    waits.add(wait(deadline_s=10.0))
    assert waits.poll(lambda _: 0, now_s=9.9) == []
    [end] = waits.poll(lambda _: 0, now_s=10.0)
    assert not end.is_reached
    assert end.error is None


def test_a_reached_version_wins_over_a_passed_deadline():
    waits = Waits()
    waits.add(wait(deadline_s=1.0))
    [end] = waits.poll(lambda _: 5, now_s=2.0)
    assert end.is_reached


def test_a_freed_region_ends_its_waits_with_the_error():
    def freed(address):
        raise RegionFreedError("freed")

    waits = Waits()
    waits.add(wait(1))
    waits.add(wait(2))
    ends = waits.poll(freed, now_s=0.0)
    assert [end.wait.request.request for end in ends] == [1, 2]
    assert all(isinstance(end.error, RegionFreedError) for end in ends)


def test_a_region_is_looked_at_once_however_many_wait():
    asked = []
    waits = Waits()
    for request in range(3):
        waits.add(wait(request))
    waits.poll(lambda address: asked.append(address) or 0, now_s=0.0)
    assert asked == [4096]


def test_the_waits_of_a_lost_connection_are_dropped():
    waits = Waits()
    waits.add(wait(1, connection="a"))
    waits.add(wait(2, connection="b"))
    waits.drop("a")
    waits.drop("nobody")
    assert [end.wait.connection for end in waits.poll(lambda _: 9, now_s=0.0)] == ["b"]


def test_a_repeated_wait_counts_once():
    waits = Waits()
    waits.add(wait(1, version=5))
    waits.add(wait(1, version=7))
    assert len(waits) == 1
    assert waits.poll(lambda _: 6, now_s=0.0) == []


def test_one_connection_cannot_wait_without_end():
    waits = Waits()
    for request in range(WAITS_MAX):
        waits.add(wait(request))
    with pytest.raises(LimitError):
        waits.add(wait(WAITS_MAX))
    waits.add(wait(0, connection="another"))
    waits.poll(lambda _: 9, now_s=0.0)
    waits.add(wait(WAITS_MAX))
