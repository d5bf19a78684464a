from __future__ import annotations

import pytest

from smbox.testing.faults import FaultScript
from smbox.testing.inproc import InprocHub
from smbox.wire import header
from smbox.wire.codec import Header
from smbox.wire.ops import Op


@pytest.fixture
def node():
    """Records what arrives and echoes it."""
    seen = []

    def handle(connection, frames):
        if not frames:
            return []
        seen.append(request_of(frames))
        return [(connection, frames)]

    hub = InprocHub(handle)
    hub.seen = seen
    return hub


def message(op, request):
    return [Header(op, request=request).pack(), b"body"]


def request_of(frames):
    return header.unpack(frames[0])[5]


def received(transport):
    found = []
    for _ in range(20):
        frames = transport.receive(0.0)
        if frames is not None:
            found.append(request_of(frames))
    return found


def test_without_faults_everything_passes(node):
    transport = FaultScript().around(node.connect)()
    assert transport.send(message(Op.PUT, 1))
    assert received(transport) == [1]


def test_the_nth_message_of_an_op_is_dropped(node):
    script = FaultScript().drop(Op.PUT, nth=2)
    transport = script.around(node.connect)()
    for request, op in enumerate((Op.PUT, Op.GET, Op.PUT, Op.PUT)):
        assert transport.send(message(op, request))
    assert node.seen == [0, 1, 3]
    assert script.is_over()


def test_a_reply_is_dropped(node):
    transport = FaultScript().drop(Op.PUT, side="reply").around(node.connect)()
    transport.send(message(Op.PUT, 1))
    transport.send(message(Op.PUT, 2))
    assert node.seen == [1, 2]
    assert received(transport) == [2]


@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_message_comes_twice(node, side):
    transport = FaultScript().duplicate(Op.PUT, side=side).around(node.connect)()
    transport.send(message(Op.PUT, 1))
    assert received(transport) == [1, 1]
    assert node.seen == ([1, 1] if side == "request" else [1])


def test_a_delayed_message_lets_others_pass(node):
    script = FaultScript().delay(Op.PUT, behind=2)
    transport = script.around(node.connect)()
    body = bytearray(b"body")
    transport.send([Header(Op.PUT, request=0).pack(), body])
    body[:] = b"gone"
    for request in (1, 2, 3):
        transport.send(message(Op.PUT, request))
    assert node.seen == [1, 2, 0, 3]
    assert received(transport) == [1, 2, 0, 3]


def test_a_delayed_reply_lets_others_pass(node):
    transport = FaultScript().delay(side="reply").around(node.connect)()
    for request in (0, 1, 2):
        transport.send(message(Op.PUT, request))
    assert received(transport) == [1, 0, 2]


@pytest.mark.parametrize(("side", "arrived"), [("request", [1]), ("reply", [1, 2])])
def test_a_cut_connection_is_dead_and_a_fresh_one_works(node, side, arrived):
    script = FaultScript().cut(Op.PUT, nth=2, side=side)
    transport = script.around(node.connect)()
    transport.send(message(Op.PUT, 1))
    assert received(transport) == [1]
    transport.send(message(Op.PUT, 2))
    assert received(transport) == []
    transport.send(message(Op.GET, 3))
    assert received(transport) == []
    assert node.seen == arrived
    fresh = script.around(node.connect)()
    fresh.send(message(Op.PUT, 4))
    assert received(fresh) == [4]
    assert script.is_over()


def test_a_script_is_not_over_before_its_message_came(node):
    script = FaultScript().drop(Op.PUT, nth=2)
    script.around(node.connect)().send(message(Op.PUT, 1))
    assert not script.is_over()
