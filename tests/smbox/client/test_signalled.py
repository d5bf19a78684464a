"""Puts with a signal over the wire: one round trip, once, never a signal without data."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from smbox.config import ClientConfig
from smbox.errors import RegionFreedError, RequestTimeoutError
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.ops import Op

WAIT_S = 30.0
SHORT_S = 0.05
PIECE = LONG_NBYTES_MAX // 4  # float32 elements: the longest request there is
ROUNDS = 3
FAULTS = {
    "a request is lost": FaultScript.drop,
    "a request comes twice": FaultScript.duplicate,
    "a request comes late": FaultScript.delay,
    "the line breaks": FaultScript.cut,
}
PATIENT = ClientConfig(
    "inproc://node", timeout_s=WAIT_S, resend_after_s=5.0, resend_after_max_s=5.0
)


@pytest.fixture
def made(boxes):
    box = boxes()
    return box.create("r", 2 * PIECE), box.counter("c")


def filled(value, pieces=2):
    return np.full(pieces * PIECE, value, np.float32)


@pytest.mark.parametrize("op", [Op.PUT, Op.ACCUMULATE], ids=["the put", "the signal"])
@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_signal_comes_once_whatever_messages_suffer(node, boxes, fault, side, op):
    script = FaultScript()
    fault(script, op, nth=2, side=side)
    box = boxes(script.around(node.connect))
    region, counter = box.create("r", 2 * PIECE), box.counter("c")
    for k in range(1, ROUNDS + 1):
        region.put(filled(k), signal=counter)
        assert counter.value == k
        assert (region.get() == k).all()
    assert script.is_over()


def test_put_and_signal_are_sent_without_waiting(node, boxes):
    box = boxes()
    region, counter = box.create("r", PIECE), box.counter("c")
    region.get()
    sent, deliver = [], node.hub.deliver
    node.hub.deliver = lambda _, frames: sent.append(frames) if frames else None
    handle = region.put_nb(filled(1, 1), signal=counter)
    assert [decode_request(frames).op for frames in sent] == [Op.PUT, Op.ACCUMULATE]
    node.hub.deliver = deliver
    handle.wait()
    assert counter.value == 1


@pytest.mark.parametrize(
    ("op", "nth", "side", "outcome", "pieces"),
    [
        (Op.PUT, 1, "request", "none", 0),
        (Op.PUT, 2, "request", "partial", 1),
        (Op.ACCUMULATE, 1, "request", "partial", 2),
        (Op.ACCUMULATE, 1, "reply", "all", 2),
    ],
)
def test_after_a_timeout_the_outcome_is_all_with_the_signal_and_only_then(
    node, boxes, op, nth, side, outcome, pieces
):
    script = FaultScript().cut(op, nth=nth, side=side)
    box = boxes(script.around(node.connect), PATIENT)
    region, counter = box.create("r", 2 * PIECE), box.counter("c")
    region.get()
    with pytest.raises(RequestTimeoutError) as caught:
        region.put(filled(7), signal=counter, timeout_s=SHORT_S)
    handle = caught.value.handle
    assert handle.outcome() == outcome
    assert handle.ranges_done() == ([(0, 4 * pieces * PIECE)] if pieces else [])
    assert counter.value == (outcome == "all")
    assert (region.get()[: pieces * PIECE] == 7).all()


@pytest.mark.parametrize("freed", ["region", "counter"])
def test_what_is_refused_sends_no_signal_and_later_changes_move_up(boxes, freed):
    box = boxes()
    region, counter, later = box.create("r", 2 * PIECE), box.counter("c"), box.counter("later")
    box.free({"region": region, "counter": counter}[freed])
    refused = region.put_nb(filled(1), signal=counter)
    ticket = later.add_nb()
    with pytest.raises(RegionFreedError):
        refused.wait()
    assert refused.outcome() == {"region": "none", "counter": "partial"}[freed]
    assert (ticket.result(), later.value) == (0, 1)
    if freed == "region":
        assert counter.value == 0


def test_a_handle_interrupted_at_any_line_goes_on_exactly_once(made, interrupted):
    region, counter = made
    lines, was_struck, total = 0, True, 0
    while was_struck:
        lines += 3 if lines > 150 else 1
        total += 1
        handle = region.put_nb(filled(total), signal=counter)
        _, was_struck = interrupted(lines, handle.wait)
        handle.wait()
        assert counter.value == total, lines
    assert lines > 100
    assert (region.get() == total).all()


def test_a_blocking_put_interrupted_at_any_line_counts_at_most_once(boxes, interrupted):
    box = boxes()
    region, counter = box.create("r", 16), box.counter("c")
    lines, was_struck = 0, True
    while was_struck:
        lines += 1
        before, x = counter.value, np.full(16, lines, np.float32)
        _, was_struck = interrupted(lines, lambda x=x: region.put(x, signal=counter))
        x[:] = -1  # nobody reads it any more
        counted = counter.value - before
        assert counted in {0, 1}
        if counted:
            assert (region.get() == lines).all()
    assert counted == 1
    assert lines > 60


def test_a_restarted_node_goes_on_where_it_was(node, made):
    region, counter = made
    region.put(filled(1), signal=counter)
    node.is_down = True
    handle = region.put_nb(filled(2), signal=counter)
    assert not handle.done()
    node.restart()
    node.is_down = False
    handle.wait()
    assert counter.value == 2
    assert (region.get() == 2).all()


def test_a_reader_that_sees_the_signal_sees_the_data_while_messages_are_lost(node, boxes):
    script = FaultScript()
    for nth in range(3, 60, 7):
        script.drop(nth=nth).cut(nth=nth + 3, side="reply")
    box = boxes(script.around(node.connect))
    region, counter = box.create("r", 999), box.counter("c")
    other = boxes()
    seen_region, seen_counter, found = other.attach("r"), other.counter("c"), []

    def read():
        for k in range(1, 31):
            seen = seen_counter.wait(k, timeout_s=WAIT_S)
            found.append(seen_region.get().min() >= seen)

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(1, 31):
        region.put(np.full(999, k, np.float32), signal=counter)
    reader.join()
    assert found == [True] * 30
    assert counter.value == 30
