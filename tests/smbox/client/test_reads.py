from __future__ import annotations

import numpy as np
import pytest

from smbox.client.reads import TRIES_MAX
from smbox.errors import (
    AccessDeniedError,
    ConfigError,
    LayoutMismatchError,
    PeerLostError,
    RegionFreedError,
    RequestTimeoutError,
)
from smbox.memory.layout import STRIPE_NBYTES, RegionState
from smbox.memory.locks import LockFile
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request, encode_reply, refuse
from smbox.wire.ops import Op

STRIPE = STRIPE_NBYTES // 4
COUNT = 5 * STRIPE + 3
ONES = np.ones(COUNT, np.float32)


def requests_of(node, op):
    return [frames for frames in node.seen if decode_request(frames).op is op]


@pytest.fixture(params=["request", "reply"])
def script(request):
    """Loses the second message of an op on this side, with its connection."""
    return lambda op: FaultScript().cut(op, nth=2, side=request.param)


def test_a_change_from_a_region_happens_once(node, boxes, script):
    fault = script(Op.FROM)
    box = boxes(fault.around(node.connect))
    to, source = box.create("to", init=ONES), box.create("source", init=ONES)
    to.accumulate_from(source, scale=2.0)
    assert fault.is_over()
    assert (to.get() == 3).all()
    assert to.version == 6 + 6  # its first contents were put


def test_a_scale_happens_once(node, boxes, script):
    fault = script(Op.ACCUMULATE)
    box = boxes(fault.around(node.connect))
    region = box.create("r", init=ONES)
    region.scale(3.0)
    assert fault.is_over()
    assert (region.get() == 3).all()
    assert region.version == 6 + 6
    sent = requests_of(node, Op.ACCUMULATE)
    assert {len(frames[1]) for frames in sent} == {0}  # no element travels


def test_a_lost_dot_is_asked_for_again(node, boxes, script):
    fault = script(Op.DOT)
    box = boxes(fault.around(node.connect))
    region, other = box.create("r", init=2 * ONES), box.create("other", init=3 * ONES)
    assert region.dot(other) == 6 * COUNT
    assert fault.is_over()
    assert (region.version, other.version) == (6, 6)


def test_vectors_that_do_not_fit_are_refused_before_anything_is_sent(node, boxes):
    box = boxes()
    region, short = box.create("r", init=ONES), box.create("short", init=ONES[1:])
    double = box.create("double", init=ONES.astype(np.float64))
    whole = box.create("whole", shape=COUNT, dtype="int32")
    before = len(node.seen)
    for verb in (region.dot, region.dot_nb, region.accumulate_from, region.accumulate_from_nb):
        for other in (short, double):
            with pytest.raises(LayoutMismatchError):
                verb(other)
    for refused in (
        lambda: region.scale(float("inf")),
        lambda: region.scale_nb(float("inf")),
        lambda: whole.scale(0.5),
        lambda: whole.dot(whole),
    ):
        with pytest.raises(ConfigError):
            refused()
    assert len(node.seen) == before
    assert (region.get() == 1).all()


def test_a_step_happens_once(node, boxes, script):
    fault = script(Op.UPDATE)
    box = boxes(fault.around(node.connect))
    region = box.create("p", shape=COUNT)
    optimizer = box.optimizer(region, "momentum", lr=1.0, momentum=0.5)
    optimizer.step(ONES)
    assert fault.is_over()
    assert (region.get() == -1).all()
    assert (optimizer.states["momentum"].get() == 1).all()


def test_lost_rows_are_asked_for_again(node, boxes, script):
    fault = script(Op.GATHER)
    box = boxes(fault.around(node.connect))
    x = np.arange(COUNT // 8 * 8, dtype=np.float32).reshape(-1, 8)
    index = np.random.default_rng(1).permutation(len(x))
    region = box.create("r", init=x)
    assert np.array_equal(region.rows(index).get(), x[index])
    assert fault.is_over()


READS = {
    Op.GET: lambda region, _: region.get_nb(),
    Op.GATHER: lambda region, _: region.rows([0]).get_nb(),
    Op.DOT: lambda region, ones: region.dot_nb(ones),
}


@pytest.mark.parametrize("op", READS)
def test_a_read_that_is_sent_again_sees_no_later_change_of_its_thread(node, boxes, op):
    fault = FaultScript().drop(op, side="reply")
    box = boxes(fault.around(node.connect))
    ones = box.create("ones", init=np.ones((1, 1), np.float32))
    region = box.create("r", init=np.ones((1, 1), np.float32))
    read, change = READS[op](region, ones), region.put_nb(np.full((1, 1), 2, np.float32))
    assert read.result() == 1
    change.wait()
    assert fault.is_over()
    assert region.get() == 2


def test_only_rows_travel(node, boxes):
    box = boxes()
    region = box.create("r", shape=(1000, 8))
    region.rows([3, 999, 3]).accumulate(np.ones((3, 8), np.float32))
    region.rows([3, 999]).get()
    (asked,) = requests_of(node, Op.GATHER)
    assert sum(len(frame) for frame in asked) == 64 + 8 + 2 * 8
    (batch,) = requests_of(node, Op.BATCH)
    assert len(batch[1]) == 32 + 16 + 3 * (8 + 32)
    assert not requests_of(node, Op.GET)


def test_a_source_that_was_freed_is_told_to_who_waits_and_to_flush(node, boxes):
    box = boxes()
    to, source = box.create("to", shape=COUNT), box.create("source", init=ONES)
    to.accumulate_from(source)
    box.free(source)
    with pytest.raises(RegionFreedError):
        to.accumulate_from(source)
    to.accumulate_from_nb(source)
    with pytest.raises(RegionFreedError):
        box.flush()
    assert (to.get() == 1).all()


@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_lost_snapshot_is_asked_for_again(node, boxes, side):
    fault = FaultScript().cut(Op.SNAPSHOT, side=side)
    region = boxes(fault.around(node.connect)).create("r", init=ONES)
    assert np.array_equal(region.get(snapshot=True), ONES)
    assert fault.is_over()


def test_a_snapshot_that_timed_out_leaves_no_copy_at_the_node(node, boxes):
    box = boxes()
    region = box.create("r", init=ONES)
    region.get()
    locks = LockFile(node.name)
    assert node.memory.regions[int(region.info.address)].try_lock(0, locks)
    try:
        with pytest.raises(RequestTimeoutError) as caught:
            region.get(snapshot=True, timeout_s=0.05)
    finally:
        locks.close()
    assert caught.value.handle.outcome() == "none"
    assert requests_of(node, Op.SNAPSHOT)  # the copy was there, or in the making
    region.get()  # any use of the channel
    assert len(node.memory.regions) == 1


@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_snapshot_whose_copy_is_lost_begins_anew(node, boxes, side):
    fault = FaultScript().cut(Op.GET, nth=2, side=side)
    box = boxes(fault.around(node.connect))
    region = box.create("r", init=ONES)
    handle = region.get_nb(snapshot=True)
    region.accumulate_nb(ONES)  # behind it, whatever happens
    assert np.array_equal(handle.result(), ONES)
    assert fault.is_over()
    assert (
        len(requests_of(node, Op.SNAPSHOT)) == 2
    )  # the channel has resumed, and so the first one was gone
    assert len(node.memory.regions) == 1
    assert (region.get() == 2).all()


class Losing:
    """A connection to a node that loses all unpublished regions before each GET."""

    def __init__(self, node, control):
        self._node = node
        self._control = control
        self._inner = node.connect()

    def send(self, frames):
        if decode_request(frames).op is Op.GET:
            for address, region in list(self._node.memory.regions.items()):
                if region.state == RegionState.BUILDING:
                    self._control.free(address, 10.0)
        return self._inner.send(frames)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_snapshot_whose_copies_are_all_lost_is_given_up(node, boxes, client):
    box = boxes(lambda: Losing(node, client.control))
    region = box.create("r", init=ONES)
    with pytest.raises(PeerLostError) as caught:
        region.get(snapshot=True)
    assert caught.value.facts["outcome"] == "none"
    assert len(requests_of(node, Op.SNAPSHOT)) == TRIES_MAX
    box.counter("c").add()  # the channel is as good as before
    assert len(node.memory.regions) == 2


def test_a_snapshot_of_a_region_that_is_freed_leaves_no_copy(node, boxes):
    box = boxes()
    region = box.create("r", init=ONES)
    box.free(region)
    with pytest.raises(RegionFreedError):
        region.get(snapshot=True)
    assert requests_of(node, Op.SNAPSHOT)
    assert len(node.memory.regions) == 0


def refusing(node, monkeypatch, count):
    """Let the node refuse the next GET requests, this many."""
    receive, left = node.node.receive, [AccessDeniedError("no reads")] * count

    def refuse_reads(connection, frames, *, now_s):
        request = decode_request(frames)
        if request.op is not Op.GET or not left:
            return receive(connection, frames, now_s=now_s)
        return [(connection, encode_reply(refuse(request, left.pop())))]

    monkeypatch.setattr(node.node, "receive", refuse_reads)


def test_a_read_that_was_refused_stores_no_later_reply(node, boxes, monkeypatch):
    box, out = boxes(), np.zeros(COUNT, np.float32)
    region = box.create("r", init=ONES)
    refusing(node, monkeypatch, 1)
    with pytest.raises(AccessDeniedError):
        region.get(out=out)
    assert region.version == 6  # the other replies came before this one
    assert len(requests_of(node, Op.GET)) == 3
    assert not out.any()


def test_a_snapshot_whose_copy_cannot_be_read_leaves_none(node, boxes, monkeypatch):
    """What is not in flight when the first refusal comes is not requested."""
    region = boxes().create("r", shape=16 * STRIPE)
    refusing(node, monkeypatch, 8)
    with pytest.raises(AccessDeniedError):
        region.get(snapshot=True)
    assert len(requests_of(node, Op.SNAPSHOT)) == 1
    assert 1 <= len(requests_of(node, Op.GET)) < 8
    assert len(node.memory.regions) == 1
