from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies

from memnode.commands import Answer, Execute, Greet, Part
from memnode.state import NodeState
from smbox.errors import LimitError
from smbox.wire.codec import Request, encode_request
from smbox.wire.header import HEADER_NBYTES
from smbox.wire.messages import Empty, Hello
from smbox.wire.ops import Op
from smbox.wire.status import Status

A, B, C = (0, b"a"), (0, b"b"), (1, b"a")


def hello(client=1, channel=0):
    return Hello(client_id=client.to_bytes(16, "little"), channel=channel, pid=7)


def state(**settings):
    return NodeState(**({"expiry_s": 300.0, "sessions_max": 8} | settings))


def ask(node, connection, request, now_s=0.0):
    return node.receive(connection, encode_request(request), now_s=now_s)


def test_hello_asks_for_a_session():
    request = Request(Op.HELLO, 1, body=hello())
    [effect] = ask(state(), A, request)
    assert isinstance(effect, Greet)
    assert effect.hello == hello()


@pytest.mark.parametrize("op", [Op.GET, Op.PUT, Op.WAIT, Op.PING, Op.BYE])
def test_without_a_session_everything_else_is_refused(op):
    body = Empty() if op in {Op.PING, Op.BYE} else None
    [effect] = ask(state(), A, Request(op, 9, body=body))
    assert isinstance(effect, Answer)
    assert effect.reply.status is Status.NO_SESSION
    assert effect.reply.request == 9


def test_with_a_session_requests_are_executed():
    node = state()
    node.open(A, hello(), now_s=0.0)
    [effect] = ask(node, A, Request(Op.GET, 1, nbytes=4))
    assert isinstance(effect, Execute)
    [effect] = ask(node, A, Request(Op.BYE, 2, body=Empty()))
    assert isinstance(effect, Part)
    [other] = ask(node, C, Request(Op.GET, 1, nbytes=4))
    assert isinstance(other, Answer), "the same id on another socket is somebody else"


def test_a_channel_that_comes_back_replaces_its_former_connection():
    node = state()
    first, replaced = node.open(A, hello(), now_s=0.0)
    assert replaced == []
    second, replaced = node.open(B, hello(), now_s=0.0)
    assert replaced == [first]
    assert node.session(A) is None
    assert node.session(B) is second
    assert len(node) == 1


def test_another_hello_on_a_connection_replaces_its_session():
    node = state()
    first, _ = node.open(A, hello(1), now_s=0.0)
    node.open(B, hello(2), now_s=0.0)
    _, replaced = node.open(A, hello(2), now_s=0.0)
    assert {each.connection for each in replaced} == {A, B}
    assert first in replaced
    assert len(node) == 1


def test_channels_of_a_client_are_sessions_of_their_own():
    node = state()
    node.open(A, hello(1, 0), now_s=0.0)
    node.open(B, hello(1, 1), now_s=0.0)
    assert len(node) == 2
    node.close(A)
    assert node.has_client(1)
    node.close(B)
    assert not node.has_client(1)
    assert node.close(B) is None


def test_there_are_only_so_many_sessions():
    node = state(sessions_max=1)
    node.open(A, hello(1), now_s=0.0)
    with pytest.raises(LimitError):
        node.open(B, hello(2), now_s=0.0)
    assert node.session(A) is not None
    node.open(B, hello(1), now_s=0.0)  # it replaces itself


def test_silent_channels_expire_and_speaking_ones_do_not():
    node = state(expiry_s=300.0)
    node.open(A, hello(1), now_s=0.0)
    node.open(B, hello(2), now_s=0.0)
    ask(node, A, Request(Op.GET, 1, nbytes=4), now_s=200.0)
    assert node.expire(now_s=299.0) == []
    [(key, session)] = node.expire(now_s=300.0)
    assert key == (2, 0)
    assert session.connection == B
    assert node.session(B) is None


def test_who_is_answered_at_once_is_not_silent():
    node = state(expiry_s=300.0)
    node.open(A, hello(1), now_s=0.0)
    node.touch(A, now_s=200.0)
    assert node.expire(now_s=499.0) == []
    assert len(node.expire(now_s=500.0)) == 1


def test_channels_of_an_earlier_run_expire_unless_they_come_back():
    node = state(expiry_s=300.0)
    node.remember([(1, 0), (2, 0)], now_s=0.0)
    node.open(A, hello(1), now_s=100.0)
    assert node.expire(now_s=300.0) == [((2, 0), None)]


def test_what_cannot_be_answered_leads_to_nothing():
    node = state()
    assert node.receive(A, [], now_s=0.0) == []
    assert node.receive(A, [b"x" * HEADER_NBYTES], now_s=0.0) == []


def test_an_unknown_op_is_refused_with_its_request():
    frames = [bytearray(encode_request(Request(Op.GET, 5))[0])]
    frames[0][5] = 200
    [effect] = state().receive(A, frames, now_s=0.0)
    assert effect.reply.status is Status.BAD_MESSAGE
    assert effect.reply.request == 5


@settings(deadline=None, max_examples=100)
@given(frames=strategies.lists(strategies.binary(max_size=80), max_size=3))
def test_garbage_never_raises(frames):
    assert all(isinstance(e, Answer) for e in state().receive(A, frames, now_s=0.0))
