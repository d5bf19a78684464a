from __future__ import annotations

import pytest

from smbox.paths.work import Lease
from smbox.work import Work


@pytest.fixture
def info(client):
    return client.create(4)


def test_plain_work_changes_nothing():
    work = Work()
    work.begin()
    work.cancel()
    assert (work.progress(), work.outcome()) == (0, "none")
    assert (work.ranges_done(), work.facts()) == ([], {})


def test_a_lease_ends_once(info):
    ends = []
    lease = Lease(info, lambda region, is_sound: ends.append((region, is_sound)))
    lease.give()
    lease.drop()
    assert ends == [(info, True)]


def test_a_lease_knows_its_addresses(info):
    lease = Lease(info, lambda *_: None)
    begin = int(info.address)
    assert [lease.holds(begin + at) for at in (-1, 0, 15, 16)] == [False, True, True, False]
    assert not lease.holds(None)
