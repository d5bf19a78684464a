from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError, RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.paths.remote_snapshot import RemoteSnapshot
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.ops import Op

STRIPE = STRIPE_NBYTES // 4
COUNT = 5 * STRIPE + 3
ONES = np.ones(COUNT, np.float32)


@pytest.fixture
def held(node):
    """A local writer holds a stripe until the lock file is closed."""
    files = []

    def hold(region, stripe):
        files.append(LockFile(node.name))
        mapped = node.memory.regions[int(region.info.address)]
        assert files[-1].try_lock(mapped.lock_byte(stripe))
        return files[-1]

    yield hold
    for locks in files:
        locks.close()


def ops_of(node):
    return [decode_request(frames).op for frames in node.seen]


@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("op", [Op.CREATE, Op.SNAPSHOT, Op.GET])
def test_what_was_lost_of_a_snapshot_is_asked_for_again(node, boxes, op, side):
    nth = 2 if op is Op.CREATE else 1  # the first one makes the region
    fault = FaultScript().cut(op, nth=nth, side=side)
    box = boxes(fault.around(node.connect))
    region = box.create("r", shape=COUNT, init=1.0)
    assert np.array_equal(region.get(snapshot=True), ONES)
    assert fault.is_over()


def test_a_small_range_needs_no_staging(node, boxes):
    region = boxes().create("r", shape=COUNT)
    assert region[:STRIPE].get(snapshot=True).sum() == 0
    assert Op.SNAPSHOT not in ops_of(node)
    assert region.get(snapshot=True).sum() == 0
    assert ops_of(node).count(Op.SNAPSHOT) == 1


def test_staging_is_used_again(node, boxes):
    region = boxes().create("r", shape=COUNT)
    for _ in range(3):
        region.get(snapshot=True)
    assert ops_of(node).count(Op.CREATE) == 2


def test_a_snapshot_survives_a_restart_that_loses_its_staging(node, boxes):
    region = boxes().create("r", shape=COUNT, init=1.0)
    assert region.get(snapshot=True)[0] == 1
    node.restart()
    assert np.array_equal(region.get(snapshot=True), ONES)


def test_a_snapshot_survives_a_restart_that_loses_the_copy(node, boxes, monkeypatch):
    region = boxes().create("r", init=ONES)
    usual, restarts = RemoteSnapshot._call_out, []

    def struck(work, first):
        if not restarts:
            restarts.append(node.restart())
        return usual(work, first)

    monkeypatch.setattr(RemoteSnapshot, "_call_out", struck)
    assert np.array_equal(region.get(snapshot=True), ONES)
    assert len(restarts) == 1


def test_a_handle_tells_that_its_staging_was_lost(node, boxes):
    region = boxes().create("r", shape=COUNT, init=1.0)
    region.get(snapshot=True)
    node.restart()
    with pytest.raises(PeerLostError, match="restarted") as error:
        region.get_nb(snapshot=True).wait()
    assert error.value.facts["outcome"] == "not-sent"


def test_a_timeout_leaves_it_under_way(boxes, held):
    region = boxes().create("r", shape=COUNT, init=1.0)
    locks = held(region, 3)
    with pytest.raises(RequestTimeoutError) as error:
        region.get(snapshot=True, timeout_s=0.2)
    assert error.value.facts["outcome"] == "not-sent"
    locks.close()
    assert np.array_equal(error.value.handle.result(), ONES)


def test_nothing_overtakes_a_snapshot_that_waits(boxes, held):
    region = boxes().create("r", shape=COUNT, init=1.0)
    locks = held(region, 3)
    first = region.get_nb(snapshot=True)
    second = region.put_nb(ONES * 7)
    read = region.get_nb()
    assert not read.done()
    locks.close()
    assert (read.result() == 7).all()
    second.wait()
    assert (first.result() == 1).all()


def test_a_freed_region_is_told(boxes):
    box = boxes()
    region = box.create("r", shape=COUNT)
    region.get(snapshot=True)
    box.free(region)
    with pytest.raises(RegionFreedError):
        region.get(snapshot=True)
