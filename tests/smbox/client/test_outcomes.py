"""Cancelled and failed verbs: their arrays are released, and their outcome is final."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from smbox.address import GlobalAddress
from smbox.client.changes import Change
from smbox.client.channel import Channel
from smbox.client.connection import Connection, Identity
from smbox.config import WINDOW_MAX, ClientConfig
from smbox.dtypes import by_name
from smbox.errors import ConfigError, PeerLostError, RegionFreedError, RequestTimeoutError
from smbox.memory.kernels import KernelCode
from smbox.paths.requests import Operation, RegionInfo
from smbox.testing.faults import FaultScript
from smbox.transports.zeromq import ZmqTransport
from smbox.wire.codec import Request, decode_request, encode_request
from smbox.wire.header import LONG_NBYTES_MAX, NO_SCALE
from smbox.wire.ops import Op

WAIT_S = 30.0
SHORT_S = 0.05
PIECE = LONG_NBYTES_MAX // 4  # float32 elements: the longest request there is
PATIENT = ClientConfig(
    "inproc://node", timeout_s=WAIT_S, resend_after_s=5.0, resend_after_max_s=5.0
)


@pytest.fixture
def region(boxes):
    return boxes().create("r", 3 * PIECE)


def timed_out(verb, *arguments):
    with pytest.raises(RequestTimeoutError) as caught:
        verb(*arguments, timeout_s=SHORT_S)
    return caught.value


def test_what_was_never_sent_is_none(node, region):
    region.get()
    node.is_down = True
    later = region.put_nb(np.ones(3 * PIECE, np.float32))  # fills the window
    error = timed_out(region[:1].accumulate, np.ones(1, np.float32))
    node.is_down = False
    assert error.handle.outcome() == "none"
    later.wait()
    assert (region.get() == 1).all()


def test_what_the_node_never_got_is_none_and_stays_so(node, region):
    x = np.ones(3 * PIECE, np.float32)
    region.get()
    node.is_down = True
    error = timed_out(region.put, x)
    assert error.facts["outcome"] == "unknown"
    x[:] = 7
    node.is_down = False
    assert error.handle.outcome() == "none"
    region.accumulate(np.ones(3 * PIECE, np.float32))
    assert (region.get() == 1).all()


class SlowTransport:
    """Sends from the caller's memory as soon as ``is_held`` is False; dropped by ``close``."""

    is_held = False

    def __init__(self, transport):
        self._transport, self._unsent = transport, []

    def send(self, frames):
        self._unsent.append(frames)
        return True

    def receive(self, timeout_s):
        while self._unsent and not SlowTransport.is_held:
            self._transport.send(self._unsent.pop(0))
        return self._transport.receive(timeout_s)

    def close(self):
        self._unsent.clear()
        self._transport.close()

    def is_released(self):
        return not self._unsent


def test_the_callers_array_is_not_read_after_a_timeout(node, boxes, monkeypatch):
    """Found by use: put raised, the loop refilled x, and the next verb sent the new bytes."""
    region = boxes(lambda: SlowTransport(node.connect()), PATIENT).create("r", 3 * PIECE)
    x = np.ones(3 * PIECE, np.float32)
    region.get()
    monkeypatch.setattr(SlowTransport, "is_held", True)
    error = timed_out(region.accumulate, x)
    x[:] = 100
    monkeypatch.setattr(SlowTransport, "is_held", False)
    assert error.handle.outcome() == "none"
    region.accumulate(np.full(3 * PIECE, 2, np.float32))
    assert (region.get() == 2).all()


@pytest.mark.parametrize(("lost", "outcome"), [(1, "partial"), (2, "partial"), (3, "all")])
def test_a_reply_that_is_lost_leaves_what_was_applied(node, boxes, lost, outcome):
    """The reply to the third of three is lost: all was applied; the request, not all."""
    side = "reply" if outcome == "all" else "request"
    script = FaultScript().cut(Op.ACCUMULATE, nth=lost + (side == "request"), side=side)
    region = boxes(script.around(node.connect), PATIENT).create("r", 3 * PIECE)
    region.get()
    error = timed_out(region.accumulate, np.ones(3 * PIECE, np.float32))
    assert error.handle.outcome() == outcome
    done = 3 * PIECE if outcome == "all" else lost * PIECE
    assert error.handle.ranges_done() == [(0, 4 * done)]
    found = region.get()
    assert (found[:done] == 1).all()
    assert not found[done:].any()


def test_late_frames_of_a_dropped_connection_change_nothing(node, clients):
    """What a network delivers after outcome() has said "none" is of an old generation."""
    client = clients()
    info = client.create(4)
    client.get(info)
    late, connections = [], []
    deliver = node.hub.deliver

    def hold_back(connection, frames):
        connections.append(connection)
        if frames and decode_request(frames).op is Op.PUT:
            late.append((connection, [bytes(frame) for frame in frames]))
        else:
            deliver(connection, frames)

    node.hub.deliver = hold_back
    work = client.change(info, np.ones(4, np.float32), KernelCode.REPLACE)
    assert not work.advance(time.monotonic() + 0.01)
    work.cancel()
    assert work.advance(time.monotonic() + WAIT_S)
    assert work.outcome() == "none"
    node.hub.deliver = deliver
    for connection, frames in late:
        assert connection != connections[-1]
        deliver(connection, frames)
        deliver(connections[-1], frames)  # even on the connection of today
    assert (client.get(info) == 0).all()
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert (client.get(info) == 1).all()


def test_a_delayed_greeting_ends_no_later_session(node, client):
    info = client.create(4)
    client.get(info)
    hello = next(
        request.body
        for request in map(decode_request, node.seen)
        if request.op is Op.HELLO and request.body.channel == 1
    )
    node.hub.deliver(b"late", encode_request(Request(Op.HELLO, request=1, body=hello)))
    seen = len(node.seen)
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert [decode_request(frames).op for frames in node.seen[seen:]] == [Op.ACCUMULATE]


def test_an_interrupt_ends_a_blocking_verb_at_any_line(boxes, interrupted):
    region = boxes().create("r", 16)
    x = np.ones(16, np.float32)
    lines, was_struck, least = 0, True, 0
    while was_struck:
        lines += 1
        x[:] = 1
        _, was_struck = interrupted(lines, lambda: region.accumulate(x))
        x[:] = 1000  # nobody reads it any more
        region.accumulate(np.ones(16, np.float32))
        least += 1
        found = region.get()
        assert (found == found[0]).all()
        assert least <= found[0] <= 2 * lines, lines
    assert lines > 60


def test_x_moves_at_most_with_the_center_wherever_it_is_interrupted(boxes, interrupted):
    region = boxes().create("r", 16)
    lines, was_struck = 0, True
    while was_struck:
        lines += 1
        region.put(np.zeros(16, np.float32))
        x = np.full(16, 8, np.float32)
        _, was_struck = interrupted(lines, lambda x=x: region.elastic(x, 0.5))
        pair = (float(region.get()[0]), float(x[0]))
        assert pair in {(0.0, 8.0), (4.0, 8.0), (4.0, 4.0)}, (lines, pair)
    assert pair == (4.0, 4.0)


def test_a_call_inside_a_call_of_the_same_thread_is_an_error(node, boxes):
    region = boxes().create("r", 4)
    region.get()
    errors, ones = [], np.ones(4, np.float32)
    handle = region.accumulate_nb(0 * ones)
    verbs = (region.get,), (region.put_nb, ones), (region.wait, 0), (handle.done,)

    def nested(*_):
        for verb, *arguments in verbs:
            with pytest.raises(ConfigError, match="handler") as caught:
                verb(*arguments)
            errors.append(caught.value)

    before = signal.signal(signal.SIGUSR1, nested)
    deliver, struck = node.hub.deliver, []

    def strike(connection, frames):
        if frames and not struck:
            struck.append(True)
            signal.raise_signal(signal.SIGUSR1)
        deliver(connection, frames)

    node.hub.deliver = strike
    try:
        region.accumulate(np.ones(4, np.float32))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert errors
    handle.wait()
    assert (region.get() == 1).all()


def test_another_memory_is_refused_for_good(node, client):
    info = client.create(4)
    x = np.ones(4, np.float32)
    client.finish(client.change(info, x))
    node.restart(unlink=True)
    for _ in range(2):
        with pytest.raises(PeerLostError, match="another memory"):
            client.finish(client.change(info, x))
    with pytest.raises(PeerLostError):
        client.create(4)
    assert len(node.memory.regions) == 0


def test_no_call_outlasts_its_timeout_by_more_than_a_second():
    def open_transport():
        return ZmqTransport("tcp://127.0.0.1:9", queue_max=WINDOW_MAX)

    config = ClientConfig("tcp://127.0.0.1:9")
    channel = Channel(Connection(1, open_transport, Identity(), config))
    x = np.ones(PIECE, np.float32).view(np.uint8)
    where = GlobalAddress(0)
    info = RegionInfo("r", by_name("uint8"), (x.size,), address=where, node_uuid=b"")
    work = Change(channel, Operation(info, "put", KernelCode.REPLACE, NO_SCALE, 0, x.size, x))
    begun_s = time.monotonic()
    assert not work.advance(begun_s + 0.1)
    work.cancel()
    channel.close()
    assert time.monotonic() - begun_s < 1.1
    assert work.outcome() == "none"


def test_flush_says_nothing_of_what_its_caller_gave_up(node, boxes):
    box = boxes()
    region, gone = box.create("r", 4), box.create("gone", 4)
    gone.get()
    node.is_down = True
    timed_out(gone.put, np.ones(4, np.float32))
    node.is_down = False
    box.free(gone)
    region.put(np.ones(4, np.float32))
    box.flush()
    with pytest.raises(RegionFreedError):
        gone.put(np.ones(4, np.float32))


def test_others_go_on_while_one_gives_up(node, boxes):
    region = boxes().create("r", 4)
    handles = [region.accumulate_nb(np.ones(4, np.float32)) for _ in range(3)]
    node.is_down = True
    handles += [region.accumulate_nb(np.ones(4, np.float32)) for _ in range(3)]
    timed_out(region.accumulate, np.full(4, 50, np.float32))
    node.is_down = False
    threads = [threading.Thread(target=handle.wait) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert (region.get() == 6).all()
