from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError, RequestTimeoutError
from smbox.memory.layout import RegionState
from smbox.paths.staging import IDLE_MAX, Staging

WAIT_S = 30.0


@pytest.fixture
def lease(client):
    staging = Staging()
    return lambda count: staging.lease(client.control, count, WAIT_S)


def test_a_region_is_used_again_by_the_next_of_its_size(lease):
    first = lease(4)
    assert lease(4).info != first.info
    first.give()
    assert lease(5).info != first.info
    assert lease(4).info == first.info


def test_it_is_never_published(client, node, lease):
    info = lease(4).info
    assert client.control.regions(WAIT_S) == []
    assert node.memory.regions[int(info.address)].state == RegionState.BUILDING


def test_what_was_dropped_is_freed_by_the_next(client, lease):
    gone = lease(4)
    gone.drop()
    assert lease(4).info != gone.info
    with pytest.raises(RegionFreedError):
        client.finish(client.change(gone.info, np.zeros(4, np.uint8)))


def test_few_idle_ones_are_kept(node, lease):
    leases = [lease(count) for count in range(1, IDLE_MAX + 3)]
    for each in leases:
        each.give()
    lease(99)
    assert len(node.memory.regions) == IDLE_MAX + 1


def test_the_node_takes_them_back_from_who_leaves(node, clients):
    other = clients()
    Staging().lease(other.control, 4, WAIT_S)
    assert len(node.memory.regions) == 1
    other.close()
    assert len(node.memory.regions) == 0


def test_what_was_idle_for_long_is_not_used_again(node, lease, monkeypatch):
    first = lease(4)
    first.give()
    monkeypatch.setattr("smbox.paths.staging.IDLE_S", -1.0)
    assert lease(4).info != first.info
    assert len(node.memory.regions) == 1


def test_a_node_that_does_not_answer_is_asked_for_one_only(node, client, monkeypatch):
    staging, asked = Staging(), []
    for each in [staging.lease(client.control, count, WAIT_S) for count in (1, 2, 3)]:
        each.drop()
    usual = client.control.free

    def silent(address, timeout_s):
        asked.append(address)
        raise RequestTimeoutError("free was not answered in time")

    monkeypatch.setattr(client.control, "free", silent)
    staging.lease(client.control, 4, WAIT_S)
    assert len(asked) == 1
    monkeypatch.setattr(client.control, "free", usual)
    staging.lease(client.control, 5, WAIT_S)
    assert len(node.memory.regions) == 2
